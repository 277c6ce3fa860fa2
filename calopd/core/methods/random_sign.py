"""Random-Sign, a control: the size of OPD's advantage with a random sign, A = ±|lT - lS|.

It keeps how far teacher and student are apart at every token and loses in which direction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calopd.core.method_inputs import StepFacts, StepPlan, TokenBatch
from calopd.core.methods.base import Method, MethodSettings, opd_advantage

if TYPE_CHECKING:
    from torch import Tensor


def advantage(tokens: TokenBatch, settings: MethodSettings) -> Tensor:
    return opd_advantage(tokens).abs() * tokens.planned["sign"]


def plan(facts: StepFacts, settings: MethodSettings) -> StepPlan:
    """One sign per token, drawn from the seed, the step and the trajectory's index."""
    import numpy as np
    import torch

    signs = {}
    for index, length in zip(facts.indices, facts.lengths, strict=True):
        draw = np.random.default_rng([facts.step.seed, facts.step.step, index])
        signs[index] = {"sign": torch.from_numpy(2.0 * draw.integers(0, 2, length) - 1.0).float()}
    return signs


METHOD = Method(name="random_sign", advantage=advantage, plan=plan, plans_each_alone=True)
