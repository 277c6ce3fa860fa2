"""Privileged-OPD: the teacher reads the reference solution, A = lT(sol+) - lS."""

from torch import Tensor

from calopd.core.methods.base import Method, opd_advantage
from calopd.core.types import MethodSettings, TokenBatch


def advantage(tokens: TokenBatch, settings: MethodSettings) -> Tensor:
    return opd_advantage(tokens)


METHOD = Method(name="privileged_opd", advantage=advantage, privileged="sol+")
