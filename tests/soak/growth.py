"""Series of measurements over the steps of a run, and whether they stay flat."""

import statistics
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Growth:
    """One quantity between the first and the last part of a run, after its start."""

    name: str
    unit: str
    early: float
    """Median over the second quarter of the steps: the first one warms up."""
    late: float
    """Median over the last quarter."""
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.late - self.early <= self.allowed


@dataclass
class Series:
    """Values of each quantity with the step at which they were measured."""

    values: defaultdict[tuple[str, str], list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, unit: str, step: int, value: float) -> None:
        self.values[name, unit].append((step, value))

    def growth(self, steps: int, allowed: dict[str, tuple[float, float]]) -> list[Growth]:
        """`allowed`: unit -> share of the early value and absolute amount, of which the larger one counts."""
        found = []
        for (name, unit), pairs in sorted(self.values.items()):
            early = [value for step, value in pairs if steps / 4 <= step < steps / 2]
            late = [value for step, value in pairs if step >= 3 * steps / 4]
            if early and late:
                share, amount = allowed[unit]
                first = statistics.median(early)
                found.append(Growth(name, unit, first, statistics.median(late), max(share * first, amount)))
        return found
