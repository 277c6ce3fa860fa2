"""Strikes a run with seeded faults until it has had enough of them, and keeps resuming it until it ends by itself."""

import heapq
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import psutil

from calopd.local.entry_point import CONFIG_ERROR_EXIT, TEMPORARY_EXIT
from tests.chaos.faults import KINDS, End, Kind, NobodyThere
from tests.chaos.stage import Stage, has_ended

TICK_SECONDS = 0.2
LEAD_SHARE, MOST_LEAD = 0.25, 4.0
"""Kills are spread over all steps: they are at most so far ahead of the run's progress, and never behind it."""
PAUSE_SECONDS = (0.2, 6.0)
"""Between two faults, unless they are behind."""
KILLED = -9
STARTED_AGAIN = (KILLED, TEMPORARY_EXIT)
"""Exit codes after which a launcher is started again: it was killed, or Redis was frozen when it started."""
COUNTED = {
    "tickets taken over from lost workers": r"took over (\d+) abandoned tickets",
    "tickets retried after an error": r"failed and will be retried",
    "duplicate results dropped": r"the result of ticket \S+ was dropped",
    "policies published again": r"is published again, whole",
    "roles restarted": r"and (?:was|is) restarted",
}
"""Events that are counted in the logs."""


class ChaosFailed(AssertionError):
    """The run did not survive."""


@dataclass(frozen=True)
class Recovered:
    """A fault that a role has recovered from."""

    role: str
    fault: str
    seconds: float
    """From the end of the fault until the role answered."""


@dataclass
class Outcome:
    """Faults of a run and its answers to them."""

    struck: "Counter[tuple[str, str]]" = field(default_factory=Counter)
    """(Kind, role) -> number."""
    kills: int = 0
    recovered: list[Recovered] = field(default_factory=list)
    overlapped: int = 0
    """Faults whose role was hit again before it had recovered."""
    given_up: list[str] = field(default_factory=list)
    """Last lines of launchers that ended the run because a person had to act, such as to free disk space."""
    resumes: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


class Driver:
    def __init__(
        self,
        stage: Stage,
        *,
        seed: int,
        kills: int,
        kinds: Sequence[Kind] = KINDS,
        first: Sequence[Kind] = (),
        show: Callable[[str], None] = print,
        seconds: float = 3_600,
    ) -> None:
        self._stage, self._draw, self._kills, self._kinds = stage, random.Random(seed), kills, kinds
        self._first = list(first)
        """Kinds that come once before the others, in any order."""
        self._show, self._limit = show, seconds
        self.outcome = Outcome()
        self._ends: list[tuple[float, int, Kind, str, End]] = []
        self._numbers = count()
        self._hits: Counter[str] = Counter()
        self._watchers: list[threading.Thread] = []
        self._over = threading.Event()
        self._steps = 0

    def run(self) -> Outcome:
        """Until the run has ended by itself."""
        stage, start = self._stage, time.monotonic()
        stage.start_launcher()
        next_fault, shown = start + 1, 0.0
        try:
            while True:
                now = time.monotonic()
                if now - start > self._limit:
                    raise ChaosFailed(f"the run did not end within {self._limit:.0f} s")
                self._end_faults(now)
                for event in stage.supervisor.check():
                    self._show(f"{now - start:6.0f} s  {event}")
                if self._launcher_ended():
                    break
                self._steps = max(self._steps, stage.steps_done)
                stage.note_policies()
                lead = self._lead()
                if lead < 0 or (now >= next_fault and lead < min(MOST_LEAD, LEAD_SHARE * self._kills)):
                    self._strike(now - start)
                    next_fault = now + self._draw.uniform(*PAUSE_SECONDS)
                if now - shown > 10:
                    shown = now
                    self._show_progress(now - start)
                time.sleep(TICK_SECONDS)
        finally:
            self._over.set()
            self._end_faults(float("inf"))
            for watcher in self._watchers:
                watcher.join()
        if self.outcome.kills < self._kills:
            raise ChaosFailed(f"the run ended after {self.outcome.kills} of {self._kills} kills: give it more steps")
        self.outcome.seconds, self.outcome.resumes = time.monotonic() - start, stage.resumes
        self.outcome.counts = self._counted()
        return self.outcome

    def _lead(self) -> float:
        """Kills so far beyond those that are due at this step; infinite if all have been done."""
        if self.outcome.kills >= self._kills:
            return float("inf")
        return self.outcome.kills - self._kills * (self._steps + 2) / self._stage.config.run.steps

    def _strike(self, seconds: float) -> None:
        for _ in range(20):
            kinds = self._first or self._kinds
            (kind,) = self._draw.choices(kinds, [kind.weight for kind in kinds])
            role = self._draw.choice(kind.targets)
            lasting = self._draw.uniform(*kind.seconds)
            if lasting and any(role == struck for *_, struck, _ in self._ends):
                continue
            before = self._stage.processes(role) if kind.is_kill else []
            if role == "launcher":
                before += self._stage.family
            try:
                end = kind.strike(self._stage, role, self._draw)
            except (NobodyThere, psutil.NoSuchProcess):
                continue
            if kind in self._first:
                self._first.remove(kind)
            self.outcome.struck[kind.name, role] += 1
            self.outcome.kills += kind.is_kill
            self._hits[role] += 1
            self._show(f"{seconds:6.0f} s  {kind.name}: {role}" + (f" for {lasting:.1f} s" if lasting else ""))
            if lasting:
                item = (time.monotonic() + lasting, next(self._numbers), kind, role, end)
                heapq.heappush(self._ends, item)
            else:
                self._watch(kind, role, before)
            return

    def _end_faults(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            *_, kind, role, end = heapq.heappop(self._ends)
            end()
            if not self._over.is_set():
                self._watch(kind, role)

    def _watch(self, kind: Kind, role: str, before: Sequence[psutil.Process] = ()) -> None:
        """Measure from now on how long a role takes to answer, after the processes `before` have ended."""
        hits, start = self._hits[role], time.monotonic()

        def wait() -> None:
            while not (all(map(has_ended, before)) and self._stage.is_ready(role)):
                if self._over.wait(TICK_SECONDS):
                    return
            if self._hits[role] == hits:
                self.outcome.recovered.append(Recovered(role, kind.name, time.monotonic() - start))
            else:
                self.outcome.overlapped += 1

        watcher = threading.Thread(target=wait, daemon=True)
        watcher.start()
        self._watchers.append(watcher)

    def _launcher_ended(self) -> bool:
        """Resume a run whose launcher was killed, or ended because of a fault that a person has to end."""
        launcher = self._stage.launcher
        assert launcher is not None
        code = launcher.poll()
        if code is None:
            self._stage.processes("learner")  # remembers the launcher's family
            return False
        if code == 0:
            return True
        if code not in STARTED_AGAIN:
            line = self._stage.log.read_text(errors="replace").strip().splitlines()[-1]
            full = any(kind == "full disk" for kind, _ in self.outcome.struck)
            if code != CONFIG_ERROR_EXIT or not full:
                raise ChaosFailed(f"the launcher gave up (exit code {code}): {line}")
            self.outcome.given_up.append(line)
            self._show(f"         the launcher ended: {line}")
        self._end_faults(float("inf"))  # a frozen process ends with its launcher only when it runs again
        self._stage.start_launcher()
        return False

    def _show_progress(self, seconds: float) -> None:
        done = self.outcome.kills / self._kills if self._kills else 1.0
        left = f", about {seconds / done * (1 - done):.0f} s left" if done > 0.05 else ""
        steps = f"step {self._steps}/{self._stage.config.run.steps}"
        self._show(f"{seconds:6.0f} s  {steps}, {self.outcome.kills}/{self._kills} kills{left}")

    def _counted(self) -> dict[str, int]:
        logs = [self._stage.log, *self._stage.root.glob("*.log"), *self._stage.config.run_dir.logs.glob("*.log")]
        text = "\n".join(log.read_text(errors="replace") for log in set(logs))
        found = {what: re.findall(pattern, text) for what, pattern in COUNTED.items()}
        return {what: sum(int(n) if str(n).isdigit() else 1 for n in numbers) for what, numbers in found.items()}
