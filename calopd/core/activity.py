"""Busy, waiting and idle seconds of the processes of a run.

busy      the process computes: a rollout samples, a teacher scores, a learner rank learns or steps the optimizer
waiting   it has work but cannot compute: responses whose scores or policy are outstanding, trajectories that have not
          arrived, a policy that is being loaded or published
idle      it has no work; of a learner rank, also its passes without trajectories, made because other ranks have some

Rollouts and teachers read their clock with every result that they send, so that the learner sees them without asking.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Role = Literal["teacher", "rollout", "learner"]


@dataclass(frozen=True, slots=True)
class Activity:
    """A process since its start, as it reads its own clock."""

    process: str
    started: float
    """Unix time; tells a process from one of the same name that was restarted."""
    busy: float
    waiting: float


class ActivityClock:
    """The clock of a process. All methods may be called from any thread."""

    def __init__(self, process: str = "") -> None:
        self._process = process
        self._started, self._since = time.time(), time.monotonic()
        self._busy = self._waiting = 0.0
        self._computing, self._held = 0, 0
        self._lock = threading.Lock()

    def compute(self, *, starts: bool) -> None:
        """The engine starts to compute, or ends."""
        with self._lock:
            self._advance()
            self._computing += 1 if starts else -1

    @contextmanager
    def computing(self) -> Iterator[None]:
        self.compute(starts=True)
        try:
            yield
        finally:
            self.compute(starts=False)

    def hold(self, count: int) -> None:
        """The process has this many tickets or requests that are not finished."""
        with self._lock:
            self._advance()
            self._held = count

    def read(self) -> Activity:
        with self._lock:
            self._advance()
            return Activity(self._process, self._started, self._busy, self._waiting)

    def _advance(self) -> None:
        now = time.monotonic()
        if self._computing:
            self._busy += now - self._since
        elif self._held:
            self._waiting += now - self._since
        self._since = now


Activities = dict[tuple[Role, str], Activity]
"""The newest reading of each process."""


def add_readings(found: Activities, role: Role, readings: Iterable[Activity | None]) -> None:
    """Keep the newest reading of each process of a role."""
    for reading in readings:
        if reading is None:
            continue
        key = role, reading.process
        if key not in found or _age(found[key]) < _age(reading):
            found[key] = reading


def _age(reading: Activity) -> tuple[float, float]:
    return reading.started, reading.busy + reading.waiting


@dataclass(frozen=True, slots=True)
class RoleSeconds:
    """Seconds of a step, in the mean over the processes of a role; they add up to the seconds of the step."""

    busy: float
    waiting: float
    idle: float


def role_seconds(
    role: Role, before: Activities, now: Activities, *, seconds: float, processes: int
) -> RoleSeconds | None:
    """The step between two readings of a role that has at least `processes` processes; None if none was read.

    The first reading after a restart of the learner may reach back further than the step, which bounds it.
    """
    parts = [_since(before.get(key), reading, seconds) for key, reading in now.items() if key[0] == role]
    if not parts:
        return None
    count = max(len(parts), processes)
    busy, waiting = (sum(part) / count for part in zip(*parts, strict=True))
    return RoleSeconds(busy, waiting, max(0.0, seconds - busy - waiting))


def _since(before: Activity | None, now: Activity, seconds: float) -> tuple[float, float]:
    if before is None or before.started != now.started:
        busy, waiting = now.busy, now.waiting
    else:
        busy, waiting = now.busy - before.busy, now.waiting - before.waiting
    busy = min(busy, seconds)
    return busy, min(waiting, seconds - busy)


def busiest(roles: Mapping[Role, RoleSeconds]) -> float:
    """Busy seconds of the busiest role: no overlap makes a step shorter."""
    return max((seconds.busy for seconds in roles.values()), default=0.0)
