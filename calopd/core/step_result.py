"""The result of a step: sums over its tokens and trajectories on all ranks, and what only the coordinator knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from calopd.core.activity import Activities, Role, RoleSeconds, add_readings
from calopd.core.calibration import Region

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class StepSums:
    """Sums over tokens or trajectories of a step; two of them add up to the sums of both."""

    sums: dict[str, float] = field(default_factory=dict)

    def add(self, **values: Tensor | float) -> None:
        for name, value in values.items():
            amount = float(value) if isinstance(value, float | int) else value.double().sum().item()
            self.sums[name] = self.sums.get(name, 0.0) + amount

    def add_tokens(self, advantage: Tensor, clamped: Tensor, raw: Tensor, entropy: Tensor) -> None:
        """Sums that every method has: what it retains of the raw discrepancy, and the student's entropy; [T] each."""
        self.add(
            tokens=float(len(raw)),
            kept=advantage.double().abs(),
            raw=raw.double().abs(),
            zero=advantage == 0,
            clamped=advantage != clamped,
            sign_flips=advantage * raw < 0,
            entropy=entropy,
        )

    def add_region(self, region: Region, deviations: Mapping[str, Tensor]) -> None:
        """Sums of the calibration: width of the region, and deviation under each probe."""
        self.add(region_width=region.width, **{f"deviation_{name}": value for name, value in deviations.items()})

    def merge(self, other: StepSums) -> None:
        self.add(**other.sums)

    def get(self, name: str) -> float:
        return self.sums.get(name, 0.0)

    def add_overlap(self, token_overlap: Tensor, mass_overlap: Tensor) -> None:
        """Sums over trajectories of the overlap with the teacher's top-k; the squares are for its standard error."""
        tokens, mass = token_overlap.double(), mass_overlap.double()
        self.add(token_overlap=tokens, mass_overlap=mass, overlap_trajectories=1.0)
        self.add(token_overlap_squares=tokens**2, mass_overlap_squares=mass**2)

    def standard_error(self, name: str, over: str) -> float | None:
        """Standard error of `mean(name, over)`, from the sum of squares; None for fewer than two values."""
        count, mean, squares = self.get(over), self.mean(name, over), self.mean(f"{name}_squares", over)
        if mean is None or squares is None or count < 2:
            return None
        return math.sqrt(max(0.0, squares - mean**2) / (count - 1))

    def mean(self, name: str, over: str) -> float | None:
        """sums[name] / sums[over]; None if nothing was measured."""
        if name not in self.sums or not self.sums.get(over):
            return None
        return self.sums[name] / self.sums[over]


@dataclass(slots=True)
class StepResult:
    """Results of a rank after the backward passes of a step; `merge` adds those of another rank."""

    sums: StepSums = field(default_factory=StepSums)
    lengths: list[int] = field(default_factory=list)
    """Response tokens of every trajectory."""
    used: list[int] = field(default_factory=list)
    """Ticket indices whose trajectories entered the gradient."""
    shown: list[dict[str, Any]] = field(default_factory=list)
    """Trajectories kept for the report."""
    sampler: str = ""
    activities: Activities = field(default_factory=dict)
    """Rollouts and teachers, when they sent their last result of the step."""
    first_tokens: dict[int, float] = field(default_factory=dict)
    """Policy version -> Unix time of the first token that was sampled from it."""

    def add_first_token(self, version: int, time: float) -> None:
        self.first_tokens[version] = min(time, self.first_tokens.get(version, time))

    def merge(self, other: StepResult) -> None:
        self.sums.merge(other.sums)
        self.lengths += other.lengths
        self.used += other.used
        self.shown += other.shown
        self.sampler = self.sampler or other.sampler
        for (role, _), reading in other.activities.items():
            add_readings(self.activities, role, [reading])
        for version, time in other.first_tokens.items():
            self.add_first_token(version, time)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A finished step: the merged results of the ranks, and what only the coordinator knows."""

    result: StepResult
    step: int
    epoch: int
    learning_rate: float
    gradient_norm: float
    denominator: int
    missing: int
    """Tickets that became dead letters."""
    seconds: float
    idle_seconds: float
    roles: Mapping[Role, RoleSeconds] = field(default_factory=dict)
    """A role that sent no reading of its clock is absent."""
    first_token_seconds: float | None = None
    """From an optimizer step to the first token of its policy: of the newest policy in this step."""
    evaluation: tuple[int, float] | None = None
    """Policy version and accuracy of the newest held-out evaluation."""

    def mean(self, name: str, over: str) -> float | None:
        return self.result.sums.mean(name, over)

    def share(self, name: str) -> float:
        """Share of the step's trajectories."""
        return self.result.sums.get(name) / max(1.0, self.result.sums.get("trajectories"))

    def percentile(self, q: float) -> float:
        return float(np.percentile(self.result.lengths, q)) if self.result.lengths else 0.0
