"""EOPD: OPD on all tokens, and forward KL to the teacher's top-k for tokens with a high teacher entropy.

L = L_OPD + alpha * agg(1[H_T > tau] * FKL_t);  FKL_t = sum_v q (log q - log pi_S(v)), q renormalised in the top-k
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calopd.core.method_inputs import TokenBatch
from calopd.core.methods.base import ForwardKLOptions, Method, MethodSettings, opd_advantage

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class EOPDSettings(MethodSettings):
    entropy_threshold: float = 0.8
    """EOPD's tau in nats: forward KL is added for tokens whose teacher entropy exceeds it."""
    forward_kl_weight: float = 1.0
    """EOPD's alpha: the weight of the forward KL."""
    forward_kl_top_k: int = 16
    """The teacher's most likely tokens that the forward KL runs over."""

    def __post_init__(self) -> None:
        self.require("entropy_threshold", self.entropy_threshold >= 0, "at least 0")
        self.require("forward_kl_weight", self.forward_kl_weight >= 0, "at least 0")
        self.require("forward_kl_top_k", self.forward_kl_top_k >= 1, "at least 1")


def advantage(tokens: TokenBatch, settings: EOPDSettings) -> Tensor:
    return opd_advantage(tokens)


def forward_kl(settings: EOPDSettings) -> ForwardKLOptions:
    return ForwardKLOptions(settings.forward_kl_top_k, settings.entropy_threshold, settings.forward_kl_weight)


def forward_kl_targets(top_logprobs: Tensor) -> Tensor:
    """q: the teacher's top-k probabilities [T, K], renormalised."""
    return top_logprobs.softmax(-1)


METHOD = Method(name="eopd", settings=EOPDSettings, advantage=advantage, forward_kl=forward_kl)
