"""The launcher of the ranks: exit codes, and nothing that others could connect to."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousStateError, dynamic_rendezvous
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from calopd.core.environment import TOKEN
from calopd.core.errors import ConfigError
from calopd.doctor.model_jobs import LAUNCHER
from calopd.local.entry_point import CONFIG_ERROR_EXIT
from services.learner import node_launcher
from tests.exploits import Exploit
from tests.services.processes import ROOT
from tests.sockets import family, listeners, own_addresses

slow = pytest.mark.slow


def launch(*words: str, error_file: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", LAUNCHER, *words]
    environment = {**os.environ, "CALOPD_ERROR_FILE": str(error_file)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)


@slow
def test_the_exit_code_is_that_of_the_rank(tmp_path):
    """The process that started the learner can tell an error of the user from a crash, and has its message."""
    words = ("-m", "services.learner", "--config", str(tmp_path / "no.toml"))
    done = launch(*words, error_file=tmp_path / "error")
    assert done.returncode == CONFIG_ERROR_EXIT, done.stderr
    assert "cannot read the configuration" in done.stderr
    assert (tmp_path / "error").read_text().startswith("cannot read the configuration")


@slow
def test_a_users_error_counts_more_than_the_crashes_that_it_causes(tmp_path):
    done = launch("--nproc-per-node=2", "-m", "tests.services.learner.failing_rank", error_file=tmp_path / "error")
    assert done.returncode == CONFIG_ERROR_EXIT, done.stderr
    assert (tmp_path / "error").read_text() == "found by rank 1"


def test_options_of_torchrun_are_refused_on_one_host(tmp_path):
    done = launch("--standalone", "-m", "services.learner", error_file=tmp_path / "error")
    assert done.returncode == 2
    assert "unknown on one host: --standalone" in done.stderr


@contextlib.contextmanager
def meeting(folder: Path, count: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Ranks that have met and stay."""
    (folder / "stay").touch()
    words = [f"--nproc-per-node={count}", "-m", "tests.services.learner.meeting_ranks", str(folder)]
    with subprocess.Popen([sys.executable, "-m", LAUNCHER, *words], cwd=ROOT) as process:
        try:
            deadline = time.monotonic() + 120
            while not all((folder / f"{rank}.txt").exists() for rank in range(count)):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield process
        finally:
            (folder / "stay").unlink()
            process.terminate()


@slow
@pytest.mark.parametrize("count", [1, 2])
def test_an_attacker_finds_no_store_to_plant_a_pickle_in(tmp_path, count):
    """torchrun unpickled what anybody had stored at its port, which listened on all interfaces."""
    with meeting(tmp_path, count) as process:
        assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(count)] == [str(count)] * count
        found = list(listeners(family(process.pid)))
        assert all(listener.is_loopback for listener in found), found
        for listener in found:
            for host in own_addresses():
                with pytest.raises(dist.DistNetworkError):
                    dist.TCPStore(host, listener.port, is_master=False, timeout=dynamic_rendezvous.timedelta(seconds=1))
        assert len(family(process.pid)) == (1 if count == 1 else 1 + count)


@slow
def test_ranks_end_with_their_launcher_and_with_one_another(tmp_path):
    with meeting(tmp_path, 2) as process:
        launcher, *ranks = family(process.pid)
        ranks[1].kill()
        assert process.wait(60) == 128 + signal.SIGKILL
        assert not any(rank.is_running() and rank.status() != "zombie" for rank in (launcher, *ranks))
    for file in tmp_path.iterdir():
        file.unlink()
    with meeting(tmp_path, 2) as process:
        _, *ranks = family(process.pid)
        process.kill()
        process.wait()
        for rank in ranks:
            rank.wait(60)


def test_torchrun_on_one_host_is_refused(monkeypatch):
    from services.learner.ranks import meeting_point

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.delenv("CALOPD_RANK_STORE", raising=False)
    with pytest.raises(ConfigError, match=r"start the ranks of one host with `python -m services.learner.launch"):
        meeting_point(2)


def test_a_planted_state_of_a_rendezvous_runs_no_code(tmp_path, monkeypatch):
    """What the agent on a node does at every heartbeat, with a store that an attacker has written to."""
    monkeypatch.setattr(dynamic_rendezvous, "pickle", pickle)  # restored at the end

    def holder() -> dynamic_rendezvous._BackendRendezvousStateHolder:
        settings = dynamic_rendezvous.RendezvousSettings(
            "run", 1, 2, dynamic_rendezvous.RendezvousTimeout(), dynamic_rendezvous.timedelta(seconds=5), 3
        )
        return dynamic_rendezvous._BackendRendezvousStateHolder(backend, settings, cache_duration=0)

    backend = C10dRendezvousBackend(dist.HashStore(), "run")
    node_launcher.read_state_without_code()
    mine = holder()
    mine.sync()
    node = dynamic_rendezvous._NodeDesc("host", 1, 0)
    mine.state.participants[node] = 0
    mine.state.wait_list.add(node)
    mine.state.last_heartbeats[node] = dynamic_rendezvous.datetime.now(dynamic_rendezvous.timezone.utc)
    mine.state.deadline = dynamic_rendezvous.datetime.now(dynamic_rendezvous.timezone.utc)
    mine.mark_dirty()
    assert mine.sync()  # the state of an honest node passes
    other = holder()
    other.sync()
    assert other.state.participants == {node: 0}

    backend.set_state(pickle.dumps(Exploit(tmp_path / "ran")), backend.get_state()[1])
    with pytest.raises(RendezvousStateError) as refused:
        mine.sync()
    assert "posix.mkdir is not allowed here" in str(refused.value.__cause__)
    assert not (tmp_path / "ran").exists()


def test_the_id_of_a_rendezvous_cannot_be_guessed(monkeypatch):
    words = ["--nnodes=2", "-m", "services.learner", "--config=run.toml"]
    monkeypatch.setenv(TOKEN.name, "secret")
    first = node_launcher.rendezvous_id("none", words)
    assert first == node_launcher.rendezvous_id("none", words)
    assert first != node_launcher.rendezvous_id("none", [*words[:-1], "--config=other.toml"])
    monkeypatch.setenv(TOKEN.name, "another")
    assert first != node_launcher.rendezvous_id("none", words)
    monkeypatch.delenv(TOKEN.name)
    with pytest.raises(ConfigError, match="several nodes need CALOPD_TOKEN"):
        node_launcher.rendezvous_id("none", words)
