"""OPD: the whole difference between teacher and student, A = lT - lS (Eq. 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calopd.core.method_inputs import TokenBatch
from calopd.core.methods.base import Method, MethodSettings, opd_advantage

if TYPE_CHECKING:
    from torch import Tensor


def advantage(tokens: TokenBatch, settings: MethodSettings) -> Tensor:
    return opd_advantage(tokens)


METHOD = Method(name="opd", advantage=advantage)
