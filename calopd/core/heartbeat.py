"""Progress of a process: work that is under way for too long is a hang, which the process itself must notice.

Each piece of work (an engine step, a batch, a phase of the learner) is entered when it starts and left when it ends. A
thread of its own compares their ages with a limit, because the thread that works is the one that hangs.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NEVER = float("inf")
MOST_POLL_SECONDS = 5.0


class Heartbeat:
    """The work of one process. All methods may be called from any thread."""

    def __init__(self, stall_seconds: float = NEVER, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall_seconds, self._clock = stall_seconds, clock
        self._started: dict[object, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def enter(self, lane: object, what: str) -> None:
        """Start a piece of work; it replaces the one before in the same lane."""
        with self._lock:
            self._started[lane] = what, self._clock()

    def leave(self, lane: object) -> None:
        with self._lock:
            self._started.pop(lane, None)

    @contextmanager
    def work(self, what: str) -> Iterator[None]:
        """A piece of work for the length of the block, beside any others."""
        lane = object()
        self.enter(lane, what)
        try:
            yield
        finally:
            self.leave(lane)

    @property
    def stalled(self) -> str | None:
        """The work that hangs, and since when; None while everything makes progress."""
        now = self._clock()
        with self._lock:
            what, since = min(self._started.values(), key=lambda piece: piece[1], default=("", now))
        if now - since <= self._stall_seconds:
            return None
        return f"no progress for {now - since:.0f} s in: {what} (run.stall_seconds = {self._stall_seconds:g})"

    def watch(self, give_up: Callable[[str], None]) -> None:
        """Call `give_up` from another thread as soon as something hangs."""
        if self._stall_seconds == NEVER:
            return
        pause = min(MOST_POLL_SECONDS, self._stall_seconds / 10)
        threading.Thread(target=self._watch, args=(pause, give_up), name="heartbeat", daemon=True).start()

    def _watch(self, pause: float, give_up: Callable[[str], None]) -> None:
        while (stalled := self.stalled) is None:
            time.sleep(pause)
        give_up(stalled)
