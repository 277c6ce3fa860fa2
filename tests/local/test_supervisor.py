"""The supervisor decides by exit codes, and its messages come from the error file, never from a log."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from calopd.core.environment import ERROR_FILE
from calopd.local import supervisor
from calopd.local.entry_point import CONFIG_ERROR_EXIT
from calopd.local.services import LocalServices, Stopped
from calopd.local.supervisor import MAX_IDLE_DEATHS, MAX_RESTARTS, Process, ProcessFailed, Supervisor

ENTRY = "tests.local.entry"


@pytest.fixture
def services(tmp_path: Path) -> Iterator[LocalServices]:
    with LocalServices(tmp_path / "logs", [str(tmp_path)]) as services:
        yield services


def wait_for(path: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def run_to_the_end(services: LocalServices, process: Process) -> list[str]:
    return [event for events in services.watch(process, poll_seconds=0.02) for event in events]


def test_a_users_error_ends_the_run_with_its_message(services):
    process = services.start("teacher", ENTRY, "config-error")
    with pytest.raises(ProcessFailed, match=r"^teacher: run.steps is -1, expected at least 1$"):
        run_to_the_end(services, process)
    assert process.popen is not None
    assert process.popen.returncode == CONFIG_ERROR_EXIT
    assert process.restarts == 0


def test_an_error_file_that_cannot_be_written_does_not_change_the_exit_code(tmp_path):
    environment = {**os.environ, ERROR_FILE.name: str(tmp_path / "removed" / "teacher.error")}
    command = [sys.executable, "-m", ENTRY, "config-error"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (CONFIG_ERROR_EXIT, "error: run.steps is -1, expected at least 1\n")


@pytest.mark.parametrize(
    ("action", "cause"), [("crash-with-error-line", "exit code 1"), ("killed-after-error-line", "signal SIGKILL")]
)
def test_a_log_line_that_looks_like_an_error_does_not_stop_a_restart(services, action, cause):
    process = services.start("teacher", ENTRY, action)
    with pytest.raises(ProcessFailed, match=f"died {MAX_RESTARTS + 1} times .* .{cause}.: see .*teacher.log"):
        run_to_the_end(services, process)
    assert process.restarts == MAX_RESTARTS


def test_a_crashed_process_is_restarted(services, tmp_path):
    process = services.start("teacher", ENTRY, "crash-once", str(tmp_path / "crashed"))
    assert run_to_the_end(services, process) == ["teacher died (RuntimeError: a crash) and was restarted"]
    assert (process.finished, process.restarts) == (True, 1)


def test_an_error_that_repeats_ends_the_run_with_its_reason(services):
    process = services.start("learner", ENTRY, "crash-for-a-reason")
    reason = r"ValueError: the method returned \[3\] advantages for 4 tokens"
    with pytest.raises(ProcessFailed, match=rf"^learner died twice of the same error \({reason}\): see .*learner.log$"):
        run_to_the_end(services, process)
    assert process.restarts == 1


def test_an_error_that_repeats_with_other_numbers_is_the_same(services):
    process = services.start("learner", ENTRY, "crash-at-an-address")
    with pytest.raises(ProcessFailed, match=r"^learner died twice of the same error \(ValueError: ticket \d+ is lost"):
        run_to_the_end(services, process)
    assert process.restarts == 1


def test_a_full_disk_ends_the_run_at_once(services):
    process = services.start("learner", ENTRY, "full-disk")
    with pytest.raises(ProcessFailed, match=r"^learner: checkpoints/000001: No space left on device: free some space"):
        run_to_the_end(services, process)
    assert process.restarts == 0


def test_a_server_that_does_not_answer_is_waited_for_longer_and_longer(services, monkeypatch):
    monkeypatch.setattr(supervisor, "SHORTEST_PAUSE", 0.001)
    process = services.start("rollout", ENTRY, "no-server")
    events: list[str] = []
    for found in services.watch(process, poll_seconds=0.02):
        events += found
        if process.restarts > MAX_RESTARTS + 1:
            break
    told = "rollout died (Redis does not answer: start the Redis server, or correct queue.url) and is restarted in 0 s"
    assert set(events) == {told}


def test_an_engine_that_fails_at_every_start_is_given_up(services):
    process = services.start("rollout", ENTRY, "failed-engine")  # as one prompt does, several times
    with pytest.raises(ProcessFailed, match=f"^rollout died {MAX_RESTARTS + 1} times .*the sampling engine"):
        run_to_the_end(services, process)
    assert process.restarts == MAX_RESTARTS


def test_the_pauses_before_restarts_double_until_the_process_has_worked(tmp_path):
    process = Process(name="rollout", command=[], log_file=tmp_path / "rollout.log")
    assert [process.pause() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    process.progress_file.touch()
    assert process.pause() == 1


def test_a_killed_process_is_restarted(services, tmp_path):
    started = tmp_path / "started"
    process = services.start("rollout", ENTRY, "sleep", str(started))
    wait_for(started)
    started.unlink()
    assert process.popen is not None
    process.popen.kill()
    process.popen.wait()
    assert services.supervisor.check() == ["rollout died (signal SIGKILL) and was restarted"]
    wait_for(started)


def killed_again_and_again(services: LocalServices, action: str, started: Path, times: int = 7) -> Process:
    process = services.start("rollout", ENTRY, action, str(started))
    for _ in range(times):
        wait_for(started)
        started.unlink()
        assert process.popen is not None
        process.popen.kill()
        process.popen.wait()
        services.supervisor.check()
    return process


def test_a_process_that_is_killed_from_outside_and_comes_back_is_never_given_up(services, tmp_path):
    assert killed_again_and_again(services, "work", tmp_path / "started").restarts == 7 > MAX_RESTARTS


def test_a_process_that_is_killed_before_it_has_done_anything_is_given_up(services, tmp_path):
    with pytest.raises(ProcessFailed, match=f"^rollout died {MAX_RESTARTS + 1} times within 120 s .signal SIGKILL"):
        killed_again_and_again(services, "sleep", tmp_path / "started")


def test_a_process_that_takes_long_to_fail_is_given_up_too(services, tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "RESTART_WINDOW_SECONDS", 0.0)
    with pytest.raises(ProcessFailed, match=f"^rollout died {MAX_IDLE_DEATHS + 1} times before it had done any work"):
        killed_again_and_again(services, "sleep", tmp_path / "started", MAX_IDLE_DEATHS + 2)


def test_the_temporary_folder_of_a_killed_launcher_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import os, sys; from pathlib import Path; from calopd.local.services import LocalServices\n"
        "with LocalServices(Path(sys.argv[1]), []): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "logs"], env={**os.environ, "TMPDIR": str(tmp_path)})
    (left,) = tmp_path.glob("calopd-*")
    with LocalServices(tmp_path / "logs", []):
        assert not left.exists()
        assert len(list(tmp_path.glob("calopd-*"))) == 1
    assert not list(tmp_path.glob("calopd-*"))
    assert not list((tmp_path / "logs").iterdir())


def test_a_job_that_must_not_be_restarted_fails(services):
    process = services.start("replica-0", ENTRY, "crash-with-error-line", restart=False)
    with pytest.raises(ProcessFailed, match=r"^replica-0 died .exit code 1.: see .*replica-0.log$"):
        run_to_the_end(services, process)
    assert process.restarts == 0


def test_the_message_of_an_earlier_start_is_not_reported(tmp_path):
    """A process that ends with the same code without a message of its own."""
    command = [sys.executable, "-c", f"raise SystemExit({CONFIG_ERROR_EXIT})"]
    process = Process(name="old", command=command, log_file=tmp_path / "old.log")
    process.error_file.write_text("from an earlier start")
    supervisor = Supervisor()
    supervisor.add(process)
    assert process.popen is not None
    process.popen.wait()
    with pytest.raises(ProcessFailed, match=r"^old: see .*old.log$"):
        supervisor.check()


def test_stopping_ends_everything_that_was_started(tmp_path):
    with LocalServices(tmp_path / "logs", []) as services:
        command = "import subprocess, sys; subprocess.run([sys.executable, '-m', *sys.argv[1:]])"
        parent = Process(
            name="parent",
            command=[sys.executable, "-c", command, ENTRY, "sleep", str(tmp_path / "started")],
            log_file=tmp_path / "parent.log",
        )
        services.supervisor.add(parent)
        wait_for(tmp_path / "started")
        assert parent.popen is not None
        family = [psutil.Process(parent.popen.pid), *psutil.Process(parent.popen.pid).children(recursive=True)]
        assert len(family) == 2
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive


def test_processes_share_one_environment(services, tmp_path, monkeypatch):
    seen = []
    for name, threads in (("one", 3), ("two", 0)):
        process = services.start(name, ENTRY, "environment", str(tmp_path / name), threads=threads)
        run_to_the_end(services, process)
        seen.append(json.loads((tmp_path / name).read_text()))
    one, two = seen
    assert one["CALOPD_TOKEN"] == two["CALOPD_TOKEN"] != ""
    assert one["HF_HUB_OFFLINE"] == "1", "the only model is a directory"
    assert one["OMP_NUM_THREADS"] == "3"
    assert two.get("OMP_NUM_THREADS") == os.environ.get("OMP_NUM_THREADS")
    assert one["OMP_WAIT_POLICY"] == os.environ.get("OMP_WAIT_POLICY", "PASSIVE")
    assert one["CALOPD_ERROR_FILE"] != two["CALOPD_ERROR_FILE"]


def test_a_user_needs_no_name(tmp_path, monkeypatch):
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr("getpass.getuser", nameless)
    with LocalServices(tmp_path / "logs", []) as services:
        run_to_the_end(services, services.start("one", ENTRY, "environment", str(tmp_path / "one")))
    seen = json.loads((tmp_path / "one").read_text())
    assert seen["TORCHINDUCTOR_CACHE_DIR"].endswith(f"torchinductor_{os.getuid()}")


def test_a_process_sees_its_own_gpus(services, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    run_to_the_end(services, services.start("one", ENTRY, "environment", str(tmp_path / "one"), gpus=(2, 3)))
    run_to_the_end(services, services.start("two", ENTRY, "environment", str(tmp_path / "two")))
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one", "two"))
    assert (one["CUDA_VISIBLE_DEVICES"], one["CUDA_DEVICE_ORDER"]) == ("2,3", "PCI_BUS_ID")
    assert "CUDA_VISIBLE_DEVICES" not in two


def test_replicas_of_a_job_share_it(services, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    started = services.start_replicas(ENTRY, "environment", str(tmp_path / "any"), gpus=[(0, 1), (2, 3)])
    assert [process.environment["CUDA_VISIBLE_DEVICES"] for process in started] == ["0,1", "2,3"]
    assert [process.command[-4:] for process in started] == [
        ["--replica", "0", "--replicas", "2"],
        ["--replica", "1", "--replicas", "2"],
    ]
    for process in started:
        run_to_the_end(services, process)


def test_a_signal_stops_the_services_and_handlers_are_restored(tmp_path):
    before = signal.getsignal(signal.SIGTERM)

    def interrupted() -> None:
        with LocalServices(tmp_path / "logs", []) as services:
            process = services.start("rollout", ENTRY, "sleep", str(tmp_path / "started"))
            wait_for(tmp_path / "started")
            processes.append(process)
            os.kill(os.getpid(), signal.SIGTERM)
            run_to_the_end(services, process)

    processes: list[Process] = []
    with pytest.raises(Stopped):
        interrupted()
    (process,) = processes
    assert process.popen is not None
    assert process.popen.poll() is not None
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_the_others_use_ends_after_them(services, tmp_path):
    def start(name: str, **settings: Any) -> None:
        ready, note = tmp_path / name, tmp_path / "ended"
        code = (
            "import pathlib, signal, sys, time\n"
            f"def end(*_): time.sleep(0.3); open({str(note)!r}, 'a').write({name!r}); sys.exit()\n"
            f"signal.signal(signal.SIGTERM, end); pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
        )
        command = [sys.executable, "-c", code]
        process = Process(name=name, command=command, log_file=tmp_path / f"{name}.log", **settings)
        services.supervisor.add(process)
        wait_for(ready)

    start("a")
    start("server", ends_last=True)
    start("b")
    services.supervisor.stop()
    assert (tmp_path / "ended").read_text() in ("abserver", "baserver")
