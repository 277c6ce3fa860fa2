"""Token-Sync, a control: zeroes as many random tokens as Cal-OPD zeroed at the same step, round(z_k N) of N."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from calopd.core.method_inputs import StepFacts, StepPlan, TokenBatch
from calopd.core.methods.base import Method, RecordedSettings, opd_advantage

if TYPE_CHECKING:
    from torch import Tensor


def advantage(tokens: TokenBatch, settings: RecordedSettings) -> Tensor:
    """Zeroed tokens stay in the denominators, as tokens inside the region do."""
    return opd_advantage(tokens) * tokens.planned["kept"]


def plan(facts: StepFacts, settings: RecordedSettings) -> StepPlan:
    import torch

    total = sum(facts.lengths)
    kept = torch.ones(total)
    draw = random.Random(f"token-sync/{facts.step.seed}/{facts.step.step}")
    kept[draw.sample(range(total), round(facts.step.recorded_ratio * total))] = 0
    return {index: {"kept": part} for index, part in zip(facts.indices, kept.split(facts.lengths), strict=True)}


METHOD = Method(name="token_sync", settings=RecordedSettings, advantage=advantage, plan=plan, recorded="zero_ratio")
