"""Local processes: started, watched, restarted when they die, and stopped with everything they started."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from calopd.core.errors import CalopdError
from calopd.local.entry_point import DIE_WITH_PARENT, die_with_parent

MAX_RESTARTS = 5
RESTART_WINDOW_SECONDS = 120.0


class ProcessFailed(CalopdError):
    """A process that starting again cannot help."""


@dataclass(slots=True)
class Process:
    name: str
    command: list[str]
    log_file: Path
    environment: dict[str, str] = field(default_factory=dict)
    popen: "subprocess.Popen[bytes] | None" = None
    restarts: int = 0
    finished: bool = False
    _log_start: int = 0
    _deaths: list[float] = field(default_factory=list)
    _family: set[psutil.Process] = field(default_factory=set)

    def start(self) -> None:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as out:
            self._log_start = out.tell()
            self.popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment, DIE_WITH_PARENT: "1"},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def look(self) -> None:
        """Remember what this process has started: torchrun's ranks have sessions of their own and may outlive it."""
        if self.popen is not None and self.popen.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._family |= set(psutil.Process(self.popen.pid).children(recursive=True))

    def terminate(self) -> None:
        if self.popen is not None and self.popen.poll() is None:
            self.popen.terminate()

    def kill(self) -> None:
        """The process and all that it started, whether it still lives or not."""
        self.look()
        if self.popen is not None and self.popen.poll() is None:
            self.popen.kill()
        for member in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(self._family, timeout=5)
        self._family.clear()

    def user_error(self) -> str | None:
        """The line that this start's log ends with, where it was the user's to mend."""
        with self.log_file.open("rb") as file:
            file.seek(self._log_start)
            lines = file.read().decode(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        return errors[-1].removeprefix("error: ") if errors else None

    def count_death(self) -> int:
        """Deaths within the window, this one included."""
        now = time.monotonic()
        self._deaths = [t for t in self._deaths if now - t < RESTART_WINDOW_SECONDS] + [now]
        return len(self._deaths)


class Supervisor:
    """The processes of a run, in the order in which they were started."""

    def __init__(self) -> None:
        self.processes: list[Process] = []

    def add(self, process: Process) -> Process:
        self.processes.append(process)
        process.start()
        return process

    def check(self) -> list[str]:
        """Restart what died; what happened, in words. A process that ended well is `finished`."""
        events = []
        for process in self.processes:
            assert process.popen is not None
            process.look()
            code = process.popen.poll()
            if code is None or process.finished:
                continue
            if code == 0:
                process.finished = True
                continue
            if (error := process.user_error()) is not None:
                raise ProcessFailed(f"{process.name}: {error}")
            if process.count_death() > MAX_RESTARTS:
                raise ProcessFailed(
                    f"{process.name} died {MAX_RESTARTS + 1} times within {RESTART_WINDOW_SECONDS:.0f} s "
                    f"(exit code {code}): see {process.log_file}"
                )
            process.kill()
            process.restarts += 1
            process.start()
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            events.append(f"{process.name} died ({how}) and was started again")
        return events

    def stop(self, grace_seconds: float = 5.0) -> None:
        """End all, the last started first; who does not go in time is killed."""
        for process in reversed(self.processes):
            process.look()
            process.terminate()
        deadline = time.monotonic() + grace_seconds
        for process in reversed(self.processes):
            assert process.popen is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.0, deadline - time.monotonic()))
            process.kill()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
