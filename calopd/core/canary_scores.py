"""The canary: a fixed text whose scores tell a good teacher from a bad one, and how far scores may deviate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from calopd.core.errors import UnhealthyTeacher

TEXT = (
    "A train leaves at 9:40 and arrives at 12:05. How long does it travel? From 9:40 to 12:00 there are 140 minutes, "
    "and 5 more make 145. Wait, let me check: 20 + 120 + 5 = 145. So the answer is \\boxed{145}."
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well scores agree with the expected ones, over all tokens of the canary.

    Rounding differs between batch shapes, and in a mixture of experts it sends a few tokens to other experts, which
    moves their scores by tenths of a nat. A wrong engine moves most tokens, or all of them in proportion.
    """

    median: float
    """Median of the absolute differences, in nats."""
    far_share: float
    """Share of the tokens that differ by more than `Tolerance.far`."""
    slope: float
    """Of the scores against the expected ones, by least squares: about 1 / T for a temperature T."""

    @classmethod
    def between(cls, scores: np.ndarray, expected: np.ndarray, far: float) -> Self:
        difference = np.abs(scores - expected)
        centred = expected - expected.mean()
        spread = float(centred @ centred)
        slope = float(centred @ (scores - scores.mean())) / spread if spread > 0 else 1.0
        return cls(float(np.median(difference)), float(np.mean(difference > far)), slope)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Limits of an agreement."""

    median: float
    far: float
    far_share: float
    slope: float
    """Of the distance from 1."""

    def check(self, found: Agreement, expected: str = "those of a plain forward pass") -> None:
        """Raise UnhealthyTeacher, naming the limit that is exceeded and the `expected` scores."""
        if not found.median <= self.median:
            reason = f"the median token by {found.median:.2g} nats (tolerance {self.median:g})"
        elif not found.far_share <= self.far_share:
            reason = f"{found.far_share:.1%} of tokens by more than {self.far:g} nats (tolerance {self.far_share:.0%})"
        elif not abs(found.slope - 1) <= self.slope:
            reason = f"all by a factor of {found.slope:.3f} (tolerance {self.slope:g}), as at another temperature"
        else:
            return
        raise UnhealthyTeacher(f"canary scores deviate from {expected}, {reason}")


TOLERANCE = {
    "float32": Tolerance(median=1e-3, far=1e-3, far_share=0.0, slope=0.01),
    "bfloat16": Tolerance(median=0.05, far=0.5, far_share=0.1, slope=0.05),
}
"""By the data type of the forward pass."""


def tolerance(dtypes: Sequence[str]) -> Tolerance:
    """The tolerance of scores by engines of these data types: that of the least precise one."""
    return TOLERANCE["float32"] if set(dtypes) == {"float32"} else TOLERANCE["bfloat16"]
