"""Advantage-Sync, a control: all of OPD's signal, scaled to what Cal-OPD retained at the same step, A = r_k A_OPD."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calopd.core.method_inputs import TokenBatch
from calopd.core.methods.base import Method, RecordedSettings, opd_advantage

if TYPE_CHECKING:
    from torch import Tensor


def advantage(tokens: TokenBatch, settings: RecordedSettings) -> Tensor:
    return tokens.step.recorded_ratio * opd_advantage(tokens)


METHOD = Method(name="advantage_sync", settings=RecordedSettings, advantage=advantage, recorded="retained_ratio")
