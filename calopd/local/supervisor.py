"""Local processes: started, watched, restarted when they die, and stopped with everything they started."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from calopd.core.environment import DIE_WITH_PARENT, ERROR_FILE
from calopd.core.errors import CalopdError
from calopd.local.entry_point import CONFIG_ERROR_EXIT, TEMPORARY_EXIT, die_with_parent

MAX_RESTARTS = 5
RESTART_WINDOW_SECONDS = 120.0


REPEAT_WINDOW_SECONDS = 900.0
"""An error that comes back within this time after a restart is permanent; large models take minutes to load."""
LONGEST_REASON = 300


class ProcessFailed(CalopdError):
    """A process failed in a way that a restart does not fix."""

    def __init__(self, message: str, *, repeats: bool = True) -> None:
        super().__init__(message)
        self.repeats = repeats
        """Whether the same command would fail again."""


@dataclass(slots=True, kw_only=True)
class Process:
    """One supervised process."""

    name: str
    command: list[str]
    log_file: Path
    environment: dict[str, str] = field(default_factory=dict)
    restart: bool = True
    """Start it again when it dies; if False, its death is a failure."""
    popen: "subprocess.Popen[bytes] | None" = None
    restarts: int = 0
    finished: bool = False
    """Whether it ended with exit code 0."""
    _deaths: list[float] = field(default_factory=list)
    _last_error: tuple[float, str] = (0.0, "")
    """When it last died of an error that it could report, and that error."""
    _family: set[psutil.Process] = field(default_factory=set)

    @property
    def error_file(self) -> Path:
        """Where the process leaves the message of an error that a user can fix."""
        return self.log_file.with_suffix(".error")

    def start(self) -> None:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self.error_file.unlink(missing_ok=True)
        launcher = {DIE_WITH_PARENT.name: "1", ERROR_FILE.name: str(self.error_file.resolve())}
        with self.log_file.open("ab") as out:
            self.popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment, **launcher},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def track_children(self) -> None:
        """Remember its child processes: the ranks of torchrun have their own sessions and may outlive it."""
        if self.popen is not None and self.popen.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._family |= set(psutil.Process(self.popen.pid).children(recursive=True))

    def terminate(self) -> None:
        if self.popen is not None and self.popen.poll() is None:
            self.popen.terminate()

    def kill(self) -> None:
        """Kill the process and everything that it started, even if the process itself has ended."""
        self.track_children()
        if self.popen is not None and self.popen.poll() is None:
            self.popen.kill()
        for member in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(self._family, timeout=5)
        self._family.clear()

    def error(self) -> str:
        """The error that the process reported before it ended, in one line; empty if it was killed."""
        try:
            text = " ".join(self.error_file.read_text(encoding="utf-8").split())
        except FileNotFoundError:
            return ""
        return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]} …"

    def repeats_error(self, error: str) -> bool:
        """Whether the process died of the same error shortly before; remembers this one."""
        now = time.monotonic()
        (then, last), self._last_error = self._last_error, (now, error)
        return bool(error) and error == last and now - then < REPEAT_WINDOW_SECONDS

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
        """Restart the processes that died and describe what happened; raise ProcessFailed if a restart cannot help."""
        events = []
        for process in self.processes:
            assert process.popen is not None
            process.track_children()
            code = process.popen.poll()
            if code is None or process.finished:
                continue
            if code == 0:
                process.finished = True
                continue
            error = process.error()
            if code == CONFIG_ERROR_EXIT:
                raise ProcessFailed(f"{process.name}: {error or f'see {process.log_file}'}")
            cause = error or (f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
            if not process.restart:
                raise ProcessFailed(f"{process.name} died ({cause}): see {process.log_file}", repeats=bool(error))
            if code != TEMPORARY_EXIT and process.repeats_error(error):
                raise ProcessFailed(f"{process.name} died twice of the same error ({cause}): see {process.log_file}")
            if process.count_death() > MAX_RESTARTS:
                raise ProcessFailed(
                    f"{process.name} died {MAX_RESTARTS + 1} times within {RESTART_WINDOW_SECONDS:.0f} s ({cause}): "
                    f"see {process.log_file}"
                )
            process.kill()
            process.restarts += 1
            process.start()
            events.append(f"{process.name} died ({cause}) and was restarted")
        return events

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Terminate all processes, the last started first; kill those that do not end in time."""
        for process in reversed(self.processes):
            process.track_children()
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
