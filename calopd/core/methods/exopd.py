"""ExOPD: the reward of the teacher over the initial student, extrapolated (the paper's appendix on training details).

A = lam (lT - lref) - (lS - lref) = (lT - lS) + (lam - 1)(lT - lref)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calopd.core.method_inputs import TokenBatch
from calopd.core.methods.base import Method, MethodSettings, Recipe, opd_advantage

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ExOPDSettings(MethodSettings):
    extrapolation: float = 1.25
    """ExOPD's lambda: 1 is OPD; above 1 the student is pushed beyond the teacher, away from its initial weights."""

    def __post_init__(self) -> None:
        self.require("extrapolation", self.extrapolation >= 0, "at least 0")


def advantage(tokens: TokenBatch, settings: ExOPDSettings) -> Tensor:
    assert tokens.reference_logprobs is not None
    beyond = tokens.teacher_logprobs - tokens.reference_logprobs
    return opd_advantage(tokens) + (settings.extrapolation - 1) * beyond


METHOD = Method(
    name="exopd",
    settings=ExOPDSettings,
    advantage=advantage,
    uses_reference=True,
    recipe=Recipe(
        clamp=None,
        loss_agg_mode="token-mean",
        learner={"lora_rank": 64, "lora_alpha": 128, "lora_targets": "all-linear"},
    ),
)
