"""EOPD: OPD on all tokens, and forward KL to the teacher's top-k where the teacher itself is undecided.

L = L_OPD + alpha * agg(1[H_T > tau] * FKL_t);  FKL_t = sum_v q (log q - log pi_S(v)), q renormalised in the top-k
"""

import torch
from torch import Tensor

from calopd.core.methods.base import Method, opd_advantage
from calopd.core.types import MethodSettings, TokenBatch


def advantage(tokens: TokenBatch, settings: MethodSettings) -> Tensor:
    return opd_advantage(tokens)


def forward_kl_targets(top_logprobs: Tensor) -> Tensor:
    """q: the teacher's top-k probabilities [T, K], renormalised."""
    return torch.softmax(top_logprobs, dim=-1)


METHOD = Method(name="eopd", advantage=advantage, uses_forward_kl=True)
