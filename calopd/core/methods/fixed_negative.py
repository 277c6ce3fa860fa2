"""Fixed-Negative, a control: the same negative advantage for every token, A = -m; the teacher has no influence.

What a student gains with it comes from training on its own responses, not from the teacher's scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calopd.core.method_inputs import TokenBatch
from calopd.core.methods.base import Method, MethodSettings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class FixedNegativeSettings(MethodSettings):
    magnitude: float = 1.0
    """Fixed-Negative's m in nats: every token's advantage is -m."""

    def __post_init__(self) -> None:
        self.require("magnitude", self.magnitude > 0, "a number above 0")


def advantage(tokens: TokenBatch, settings: FixedNegativeSettings) -> Tensor:
    return tokens.teacher_logprobs.new_full(tokens.teacher_logprobs.shape, -settings.magnitude)


METHOD = Method(name="fixed_negative", settings=FixedNegativeSettings, advantage=advantage)
