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
MANTISSA_SHIFT = 23 - 2
FIRST_BIN = 127 * QUARTERS
RESOLUTION = np.float32(2**20)
"""Nats are summed as integer multiples of 2^-20, rounded in float32: such sums are exact in float64, in any order."""


class RelaxationSums:
    """Number of tokens, sum of |a| and sum of w, by critical relaxation. Bin i is (GRID[i-1], GRID[i]].

    0/0 is in the first bin (its advantage is zero anyway), x/0 in the last.
    """

    def __init__(self, bins_3B: np.ndarray) -> None:
        self.bins = bins_3B

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


def _from_above(values: np.ndarray) -> np.ndarray:
    """Sum of the bins above each point of the grid."""
    return np.cumsum(values[:0:-1])[::-1]
