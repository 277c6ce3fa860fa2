"""What is measured every step: global sums over all valid tokens first, ratios once at the end."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from calopd.core.calibration import Region, ratio_of_sums
from calopd.core.lm_head import HeadScores


def top_k_overlap(teacher_ids: Tensor, teacher_logprobs: Tensor, student: HeadScores) -> tuple[Tensor, Tensor]:
    """Per token [T]: |Top_T & Top_S| / K, and the sum over the intersection of min(p_T, p_S), not renormalised."""
    assert student.top_ids is not None
    assert student.top_logprobs is not None
    shared_TKK = teacher_ids[:, :, None] == student.top_ids[:, None, :]
    least = torch.minimum(teacher_logprobs.exp()[:, :, None], student.top_logprobs.exp()[:, None, :])
    return shared_TKK.any(2).float().mean(1), (least * shared_TKK).sum((1, 2))


@dataclass(slots=True)
class StepSums:
    """Sums over tokens or trajectories of a step; two of them add up to the sums of both."""

    sums: dict[str, float] = field(default_factory=dict)

    def add(self, **values: Tensor | float) -> None:
        for name, value in values.items():
            amount = value.double().sum().item() if isinstance(value, Tensor) else float(value)
            self.sums[name] = self.sums.get(name, 0.0) + amount

    def add_tokens(self, advantage: Tensor, clamped: Tensor, raw: Tensor, entropy: Tensor) -> None:
        """Sums that every method has: what it kept of the raw discrepancy, and the student's entropy; [T] each."""
        self.add(
            tokens=float(len(raw)),
            kept=advantage.double().abs(),
            raw=raw.double().abs(),
            zero=advantage == 0,
            clamped=advantage != clamped,
            sign_flips=advantage * raw < 0,
            entropy=entropy,
        )

    def add_region(self, region: Region, deviations: dict[str, Tensor]) -> None:
        """Sums of the calibration: width of the region and mean deviation under each probe."""
        self.add(region_width=region.width, **{f"deviation_{name}": value for name, value in deviations.items()})

    def merge(self, other: "StepSums") -> None:
        self.add(**other.sums)

    def mean(self, name: str, over: str) -> float | None:
        """sums[name] / sums[over], None where nothing was measured."""
        if name not in self.sums or not self.sums.get(over):
            return None
        return self.sums[name] / self.sums[over]

    def ratios(self) -> dict[str, float | None]:
        """The ratios of spec section 4 over all valid tokens of the step."""
        kept, raw = (torch.tensor(self.sums.get(name, 0.0), dtype=torch.float64) for name in ("kept", "raw"))
        ratios: dict[str, float | None] = {
            "retained_ratio": ratio_of_sums(kept, raw).item(),
            "zero_ratio": self.mean("zero", "tokens"),
            "clamped_share": self.mean("clamped", "tokens"),
            "sign_flip_share": self.mean("sign_flips", "tokens"),
            "entropy": self.mean("entropy", "tokens"),
            "region_width": self.mean("region_width", "tokens"),
            "logprob_mismatch": self.mean("mismatch", "all_tokens"),
            "top16_token_overlap": self.mean("token_overlap", "overlap_trajectories"),
            "top16_mass_overlap": self.mean("mass_overlap", "overlap_trajectories"),
        }
        if "gate_open" in self.sums:
            ratios |= {
                "forward_kl": self.mean("forward_kl", "gate_open"),
                "gate_open_share": self.mean("gate_open", "tokens"),
            }
        for name in self.sums:
            if name.startswith("deviation_"):
                ratios[name] = self.mean(name, "tokens")
        return ratios
