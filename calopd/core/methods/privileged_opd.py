"""Privileged-OPD: the teacher reads the reference solution, A = lT(sol+) - lS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calopd.core.method_inputs import TokenBatch
from calopd.core.methods.base import Method, MethodSettings, opd_advantage

if TYPE_CHECKING:
    from torch import Tensor


def advantage(tokens: TokenBatch, settings: MethodSettings) -> Tensor:
    return opd_advantage(tokens)


METHOD = Method(name="privileged_opd", advantage=advantage, privileged="sol+")
