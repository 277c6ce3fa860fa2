"""ExOPD: the reward of the teacher over the initial student, extrapolated (section 4).

A = lam (lT - lref) - (lS - lref) = (lT - lS) + (lam - 1)(lT - lref)
"""

from torch import Tensor

from calopd.core.methods.base import Method, opd_advantage
from calopd.core.types import MethodSettings, TokenBatch


def advantage(tokens: TokenBatch, settings: MethodSettings) -> Tensor:
    assert tokens.reference_logprobs is not None
    beyond = tokens.teacher_logprobs - tokens.reference_logprobs
    return opd_advantage(tokens) + (settings.extrapolation - 1) * beyond


METHOD = Method(name="exopd", advantage=advantage, uses_reference=True, loss_agg_mode="token-mean", clamp=None)
