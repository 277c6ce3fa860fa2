"""The learner's Job of two pods, with the very options of its manifest: either pod may be lost."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from tests.deploy import check, manifests
from tests.ports import free_port

STEPS = 16


def job_options() -> list[str]:
    """torchrun's options in the overlay of many nodes, one rank a pod, meeting on this machine."""
    (job,) = (o for o in check.render(check.ROOT, "gpu-multi") if manifests.name_of(o) == "Job/learner")
    args = job["spec"]["template"]["spec"]["containers"][0]["args"]
    options = args[: args.index("-m")]
    changed = {"--nproc-per-node": "1", "--rdzv-endpoint": f"127.0.0.1:{free_port()}"}
    return [f"{name}={changed.get(name, value)}" for name, _, value in (option.partition("=") for option in options)]


class Pod:
    """Made again as long as it does not end well, as Kubernetes does."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command, self._log = command, log
        self.process: subprocess.Popen[bytes] | None = None
        self.exit_codes: list[int] = []
        self.over = False
        log.touch()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self.over and 0 not in self.exit_codes:
            with self._log.open("ab") as out:
                self.process = subprocess.Popen(self._command, cwd=check.ROOT, stdout=out, stderr=out)
            self.exit_codes.append(self.process.wait())
            time.sleep(1)

    def lose(self) -> None:
        """All of its processes at once."""
        assert self.process is not None
        family = psutil.Process(self.process.pid).children(recursive=True)
        for process in [*family, psutil.Process(self.process.pid)]:
            process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        self.over = True
        if self.process is not None and self.process.poll() is None:
            self.lose()

    def join(self) -> None:
        self._thread.join(300)


def test_either_pod_may_be_lost(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    monkeypatch.setitem(os.environ, "CALOPD_TOKEN", "secret")
    file = tmp_path / "step"
    command = [sys.executable, "-m", "services.learner.launch", *job_options(), "-m", "tests.deploy.rank"]
    pods = [Pod([*command, str(file), str(STEPS)], tmp_path / f"{index}.log") for index in range(2)]

    def wait_for(step: int) -> None:
        deadline = time.monotonic() + 300
        while not file.exists() or int(file.read_text() or 0) < step:
            logs = "\n".join((tmp_path / f"{index}.log").read_text()[-2000:] for index in range(2))
            assert time.monotonic() < deadline, logs
            time.sleep(0.1)

    try:
        for index, pod in enumerate(pods):
            wait_for(3 + 5 * index)
            pod.lose()
        for pod in pods:
            pod.join()
    finally:
        for pod in pods:
            pod.end()
    assert file.read_text() == str(STEPS)
    # A pod fails only if it is lost itself: its Job waits longer after every failed pod.
    assert [pod.exit_codes for pod in pods] == [[-signal.SIGKILL, 0]] * 2
