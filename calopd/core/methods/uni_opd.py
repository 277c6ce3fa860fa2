"""Uni-OPD: balanced outcomes, and a margin between right and wrong responses to one problem.

R_i = mean_t(lT - lS);  per problem M = mean(R | right) - mean(R | wrong);  if M < delta, right + gap/2, wrong - gap/2.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from calopd.core.method_inputs import StepFacts, StepPlan, TokenBatch
from calopd.core.methods.base import Method, MethodSettings, Recipe, opd_advantage

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class UniOPDSettings(MethodSettings):
    margin_delta: float = 0.4
    """The margin between the mean rewards of right and wrong responses to one problem."""
    margin_mode: Literal["broadcast", "shift"] = "broadcast"
    """`broadcast`: every token gets the shifted mean reward of its response; `shift`: every token is shifted."""
    target_correct_ratio: float = 0.5
    """Share of right responses after balancing."""

    def __post_init__(self) -> None:
        self.require("target_correct_ratio", 0 < self.target_correct_ratio < 1, "a number between 0 and 1")


def advantage(tokens: TokenBatch, settings: UniOPDSettings) -> Tensor:
    """`broadcast`: the shifted R_i for every token; `shift`: (lT - lS)_t + the shift."""
    if settings.margin_mode == "broadcast":
        return tokens.planned["level"].clone()
    return opd_advantage(tokens) + tokens.planned["shift"]


def balanced(facts: StepFacts, settings: UniOPDSettings) -> list[int]:
    """Positions to keep: the whole minority class, and random ones of the majority, round-robin over the problems."""
    right = [i for i, correct in enumerate(facts.correct) if correct]
    wrong = [i for i, correct in enumerate(facts.correct) if not correct]
    if not right or not wrong:
        return list(range(len(facts.correct)))
    ratio = settings.target_correct_ratio
    wanted_right = min(len(right), round(len(wrong) * ratio / (1 - ratio)))
    wanted_wrong = min(len(wrong), round(len(right) * (1 - ratio) / ratio))
    draw = random.Random(f"balance/{facts.step.seed}/{facts.step.step}")
    return sorted(_round_robin(right, wanted_right, facts, draw) + _round_robin(wrong, wanted_wrong, facts, draw))


def _round_robin(members: list[int], wanted: int, facts: StepFacts, draw: random.Random) -> list[int]:
    """`wanted` of the members: one of each problem in turn, in a random order."""
    by_problem: dict[str, list[int]] = defaultdict(list)
    for member in draw.sample(members, len(members)):
        by_problem[facts.problem_ids[member]].append(member)
    queues = draw.sample(list(by_problem.values()), len(by_problem))
    chosen: list[int] = []
    while len(chosen) < wanted:
        for queue in queues:
            if queue and len(chosen) < wanted:
                chosen.append(queue.pop())
    return chosen


def shifts(facts: StepFacts, kept: list[int], delta: float) -> dict[int, float]:
    """Position -> +gap/2 or -gap/2; 0 for a problem without both classes or with a margin of at least delta."""
    groups: dict[str, list[int]] = defaultdict(list)
    for i in kept:
        groups[facts.problem_ids[i]].append(i)
    out = dict.fromkeys(kept, 0.0)
    for members in groups.values():
        right = [facts.mean_gaps[i] for i in members if facts.correct[i]]
        wrong = [facts.mean_gaps[i] for i in members if not facts.correct[i]]
        if not right or not wrong:
            continue
        gap = delta - (sum(right) / len(right) - sum(wrong) / len(wrong))
        if gap > 0:
            out |= {i: gap / 2 if facts.correct[i] else -gap / 2 for i in members}
    return out


def plan(facts: StepFacts, settings: UniOPDSettings) -> StepPlan:
    import torch

    kept = balanced(facts, settings)
    moved = shifts(facts, kept, settings.margin_delta)
    return {
        index: {"shift": torch.tensor(moved[i]), "level": torch.tensor(facts.mean_gaps[i] + moved[i])}
        if i in moved
        else None
        for i, index in enumerate(facts.indices)
    }


METHOD = Method(
    name="uni_opd",
    settings=UniOPDSettings,
    advantage=advantage,
    plan=plan,
    plan_reads_student=True,
    compares_samples=True,
    recipe=Recipe(clamp=None, loss_agg_mode="token-mean", learner={"samples": 16}),
)
