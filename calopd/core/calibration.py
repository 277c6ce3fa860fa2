"""The TSD region and the calibrated advantage (the paper's section 3). Natural logarithms, float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Region:
    """[L, U]: the log-probabilities within the teacher's self-deviation. U may exceed 0."""

    lower: Tensor
    upper: Tensor

    @property
    def width(self) -> Tensor:
        return self.upper - self.lower


def tsd_region(base: Tensor, probes: Tensor, relaxation: float) -> Region:
    """Region around the teacher's log-probabilities.

    D(c) = lT(c) - lT;  down = max(0, -min_c D),  up = max(0, max_c D);
    [L, U] = [lT - lam * down, lT + lam * up]

    base [T] is lT under c0, probes [C, T] are lT(c) for C >= 1 probes, relaxation is lam >= 1.
    """
    if relaxation < 1:
        raise ValueError(f"relaxation is {relaxation}, but the paper's lambda is at least 1")
    if probes.ndim != base.ndim + 1 or probes.shape[1:] != base.shape or probes.shape[0] < 1:
        raise ValueError(
            f"probes have the shape {tuple(probes.shape)}, expected [C, *{list(base.shape)}] with at least one probe"
        )
    deviation = probes - base
    down = (-deviation.amin(dim=0)).clamp(min=0)
    up = deviation.amax(dim=0).clamp(min=0)
    return Region(lower=base - relaxation * down, upper=base + relaxation * up)


def calibrated_advantage(region: Region, student: Tensor) -> Tensor:
    """A_Cal = [L - lS]_+ - [lS - U]_+: zero inside the region, the distance to its nearest edge outside."""
    return (region.lower - student).clamp(min=0) - (student - region.upper).clamp(min=0)


def retained_ratio(calibrated: Tensor, raw: Tensor, mask: Tensor | None = None) -> Tensor:
    """r = sum|A_Cal| / sum|A_OPD| over the valid tokens; 1 if there was nothing to retain (0/0)."""
    kept, total = calibrated.abs(), raw.abs()
    if mask is not None:
        kept, total = kept[mask.bool()], total[mask.bool()]
    kept, total = kept.double().sum(), total.double().sum()
    return kept.new_tensor(ratio_of_sums(kept.item(), total.item()))


def ratio_of_sums(kept: float, total: float) -> float:
    """kept / total, and 1 for 0/0: a teacher equal to the student withholds nothing."""
    return kept / total if total > 0 else 1.0


def zero_ratio(calibrated: Tensor, mask: Tensor | None = None) -> Tensor:
    """z = share of the valid tokens with A_Cal == 0."""
    import torch

    zero = calibrated == 0
    if mask is not None:
        zero = zero[mask.bool()]
    return zero.double().mean() if zero.numel() else torch.zeros((), dtype=torch.float64)
