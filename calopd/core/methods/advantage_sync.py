"""Advantage-Sync, a control: all of OPD's signal, scaled to what Cal-OPD retained at the same step, A = r_k A_OPD."""

from torch import Tensor

from calopd.core.methods.base import Method, opd_advantage
from calopd.core.types import MethodSettings, TokenBatch


def advantage(tokens: TokenBatch, settings: MethodSettings) -> Tensor:
    return settings.recorded_ratio * opd_advantage(tokens)


METHOD = Method(name="advantage_sync", advantage=advantage, recorded="retained_ratio")
