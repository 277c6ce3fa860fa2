"""Token-Sync, a control: as many random tokens zeroed as Cal-OPD zeroed at the same step, round(z_k N) of N."""

import random

import torch
from torch import Tensor

from calopd.core.methods.base import Method, opd_advantage
from calopd.core.types import MethodSettings, Plan, StepFacts, TokenBatch


def advantage(tokens: TokenBatch, settings: MethodSettings) -> Tensor:
    """The denominators stay: a zeroed token counts as one that has nothing to teach."""
    return opd_advantage(tokens) * tokens.planned["kept"]


def plan(facts: StepFacts, settings: MethodSettings) -> Plan:
    total = sum(facts.lengths)
    kept = torch.ones(total)
    draw = random.Random(f"token-sync/{settings.seed}/{settings.step}")
    kept[draw.sample(range(total), round(settings.recorded_ratio * total))] = 0
    return {index: {"kept": part} for index, part in zip(facts.indices, kept.split(facts.lengths), strict=True)}


METHOD = Method(name="token_sync", advantage=advantage, plan=plan, recorded="zero_ratio")
