"""Local processes: started, watched, restarted when they die, and stopped with everything they started."""

import contextlib
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from calopd.core.environment import DIE_WITH_PARENT, ERROR_FILE, PROGRESS_FILE
from calopd.core.errors import CalopdError
from calopd.local.entry_point import CONFIG_ERROR_EXIT, RESTART_EXIT, TEMPORARY_EXIT, ends_with_this_process

MAX_RESTARTS = 5
RESTART_WINDOW_SECONDS = 120.0
MAX_IDLE_DEATHS = 8
"""Deaths in a row before any work was done, however long each start took: a large model that finds no memory."""
REPEAT_WINDOW_SECONDS = 900.0
"""An error that comes back within this time after a restart is permanent; large models take minutes to load."""
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a process is restarted that waits for something, such as Redis; doubled from time to time."""
LONGEST_REASON = 300
NUMBER = re.compile(r"\b(0x)?[0-9a-f]*\d[0-9a-f]*\b|\d+", re.IGNORECASE)
"""Decimal or hexadecimal: two messages that differ in them alone (a ticket, an address) are the same error."""


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
    ends_last: bool = False
    """Whether the others use it until they have ended."""
    popen: "subprocess.Popen[bytes] | None" = None
    restarts: int = 0
    finished: bool = False
    """Whether it ended with exit code 0."""
    _deaths: list[float] = field(default_factory=list)
    idle_deaths: int = 0
    """Deaths since it last did some work."""
    _last_error: tuple[float, str] = (0.0, "")
    """When it last died of an error that it could report, and that error."""
    _pauses: int = 0
    restart_time: float | None = None
    """When it is started again, if it waits for something outside of it."""
    _family: set[psutil.Process] = field(default_factory=set)

    @property
    def error_file(self) -> Path:
        """Where the process leaves the message of an error that a user can fix."""
        return self.log_file.with_suffix(".error")

    @property
    def progress_file(self) -> Path:
        """The file that the process creates once it has done some work."""
        return self.log_file.with_suffix(".progress")

    def start(self) -> None:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        for file in (self.error_file, self.progress_file):
            file.unlink(missing_ok=True)
        launcher = {
            DIE_WITH_PARENT.name: "1",
            ERROR_FILE.name: str(self.error_file.resolve()),
            PROGRESS_FILE.name: str(self.progress_file.resolve()),
        }
        with self.log_file.open("ab") as out:
            self.popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment, **launcher},
                start_new_session=True,
                preexec_fn=ends_with_this_process(),
            )

    @property
    def has_ended(self) -> bool:
        return self.popen is not None and self.popen.poll() is not None

    def track_children(self) -> None:
        """Remember its child processes: engines of vLLM have their own sessions and may outlive it."""
        if self.popen is not None and self.popen.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._family |= set(psutil.Process(self.popen.pid).children(recursive=True))

    def terminate(self) -> None:
        if self.popen is not None and self.popen.poll() is None:
            self.popen.terminate()

    def wait(self, seconds: float) -> None:
        """Wait until the process has ended, at most so long; one whose start was interrupted does not exist."""
        if self.popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(max(0.0, seconds))

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
        now, error = time.monotonic(), NUMBER.sub("#", error)
        (then, last), self._last_error = self._last_error, (now, error)
        return bool(error) and error == last and now - then < REPEAT_WINDOW_SECONDS

    def pause(self) -> float:
        """Put off its restart by longer and longer times, until it has done some work; returns the seconds."""
        self._pauses = 0 if self.progress_file.exists() else self._pauses
        seconds = min(SHORTEST_PAUSE * 2**self._pauses, LONGEST_PAUSE)
        self._pauses += 1
        self.restart_time = time.monotonic() + seconds
        return seconds

    def count_death(self, *, from_outside: bool) -> int:
        """Deaths within the window, this one included.

        A process that died of something outside of it after it had done some work has come back: earlier deaths are
        forgotten.
        """
        now, worked = time.monotonic(), self.progress_file.exists()
        self.idle_deaths = 0 if worked else self.idle_deaths + 1
        if from_outside and worked:
            self._deaths = []
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
            if process.restart_time is not None:
                if time.monotonic() >= process.restart_time:
                    process.restart_time = None
                    process.start()
                continue
            error = process.error()
            if code == CONFIG_ERROR_EXIT:
                raise ProcessFailed(f"{process.name}: {error or f'see {process.log_file}'}")
            cause = error or (f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
            if not process.restart:
                raise ProcessFailed(f"{process.name} died ({cause}): see {process.log_file}", repeats=bool(error))
            if code == TEMPORARY_EXIT:  # it waits for a server: it is not to blame, and not given up
                process.kill()
                process.restarts += 1
                events.append(f"{process.name} died ({cause}) and is restarted in {process.pause():.0f} s")
                continue
            # The parent of ranks passes on a signal as 128 + its number; an error is then that of a rank that was left.
            if code <= 128 and code != RESTART_EXIT and process.repeats_error(error):
                raise ProcessFailed(f"{process.name} died twice of the same error ({cause}): see {process.log_file}")
            from_outside = not 0 < code <= 128 or code == RESTART_EXIT
            if process.count_death(from_outside=from_outside) > MAX_RESTARTS:
                raise ProcessFailed(
                    f"{process.name} died {MAX_RESTARTS + 1} times within {RESTART_WINDOW_SECONDS:.0f} s ({cause}): "
                    f"see {process.log_file}"
                )
            if process.idle_deaths > MAX_IDLE_DEATHS:
                raise ProcessFailed(
                    f"{process.name} died {process.idle_deaths} times before it had done any work ({cause}): "
                    f"see {process.log_file}"
                )
            process.kill()
            process.restarts += 1
            process.start()
            events.append(f"{process.name} died ({cause}) and was restarted")
        return events

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Terminate all processes, the last started first; kill those that do not end in time."""
        for ends_last in (False, True):
            ending = [process for process in reversed(self.processes) if process.ends_last == ends_last]
            for process in ending:
                process.track_children()
                process.terminate()
            deadline = time.monotonic() + grace_seconds
            for process in ending:
                process.wait(deadline - time.monotonic())
                process.kill()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
