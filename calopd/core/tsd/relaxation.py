"""Retained ratio and zero-advantage ratio of Cal-OPD at every relaxation of a grid, from one pass over the tokens.

With a = lT - lS and w = the teacher's deviation towards the student (down if a > 0, up if a < 0),
|A_Cal| = max(0, |a| - lam * w), which reaches zero at the token's critical relaxation |a| / w. Sums of |a| and w over
tokens, binned by critical relaxation, yield both ratios for the whole grid.
"""

import numpy as np

QUARTERS = 4
OCTAVES = 7
GRID = np.array([2.0**e * (1 + m / QUARTERS) for e in range(OCTAVES) for m in range(QUARTERS)] + [2.0**OCTAVES])
"""1, 1.25, 1.5, 1.75, 2, 2.5, ... 128. Bins are the leading bits of a float32, so that finding a bin is a shift."""
_MANTISSA_SHIFT = 23 - 2
_FIRST = 127 * QUARTERS
RESOLUTION = np.float32(2**20)
"""Nats are summed as integer multiples of 2^-20: such sums are exact in float64, in any order."""


def fixed(values: np.ndarray) -> np.ndarray:
    """Round nats to integer multiples of 2^-20; the float32 result is exact below 16 nats."""
    return np.rint(values * RESOLUTION)


class RelaxationSums:
    """Number of tokens, sum of |a| and sum of w, by critical relaxation. Bin i is (GRID[i-1], GRID[i]]."""

    def __init__(self) -> None:
        self.bins = np.zeros((3, len(GRID) + 1))

    def add(self, size: np.ndarray, width: np.ndarray) -> None:
        """Add tokens: size = |a|, width = w >= 0, both float32 [T]."""
        bins = critical_bin(size, width)
        for row, weights in enumerate((None, fixed(size), fixed(width))):
            self.bins[row] += np.bincount(bins, weights, len(GRID) + 1)

    def merge(self, other: "RelaxationSums") -> None:
        self.bins += other.bins

    def retained(self) -> list[float]:
        """sum|A_Cal| / sum|A_OPD| at every relaxation of the grid; 1 if teacher and student agree on all tokens."""
        _, size, width = self.bins
        if not size.sum():
            return [1.0] * len(GRID)
        beyond = (_from_above(size) - GRID * _from_above(width)) / size.sum()
        return np.maximum(beyond, 0.0).tolist()

    def zero(self) -> list[float]:
        """Share of tokens with A_Cal = 0 at every relaxation of the grid."""
        count = self.bins[0]
        return (np.cumsum(count)[:-1] / max(count.sum(), 1)).tolist()


def critical_bin(size: np.ndarray, width: np.ndarray) -> np.ndarray:
    """Bin of |a| / w; 0/0 is in the first bin (its advantage is zero anyway), x/0 in the last."""
    with np.errstate(over="ignore"):
        critical = size / np.maximum(width, np.finfo(np.float32).tiny)
    # Subtract one from the last bit, so that a bin includes its upper edge: at lam = |a| / w the advantage is zero.
    bins = (critical.view(np.int32) - 1) >> _MANTISSA_SHIFT
    bins -= _FIRST - 1
    return np.clip(bins, 0, len(GRID), out=bins).astype(np.intp)


def _from_above(values: np.ndarray) -> np.ndarray:
    """Sum of the bins above each point of the grid."""
    return np.cumsum(values[:0:-1])[::-1]
