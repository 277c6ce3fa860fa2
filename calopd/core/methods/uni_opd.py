"""Uni-OPD: balanced outcomes, and a margin between right and wrong responses to one problem.

R_i = mean_t(lT - lS);  per problem M = mean(R | right) - mean(R | wrong);  if M < delta, right + gap/2, wrong - gap/2.
"""

import random
from collections import defaultdict

import torch
from torch import Tensor

from calopd.core.methods.base import Method, opd_advantage
from calopd.core.types import MethodSettings, Plan, StepFacts, TokenBatch


def advantage(tokens: TokenBatch, settings: MethodSettings) -> Tensor:
    """`broadcast`: the shifted R_i for every token; `shift`: (lT - lS)_t + the shift."""
    if settings.margin_mode == "broadcast":
        return tokens.planned["level"].clone()
    return opd_advantage(tokens) + tokens.planned["shift"]


def balanced(facts: StepFacts, settings: MethodSettings) -> list[int]:
    """Positions that stay: the minority class whole, the majority drawn at random, round-robin over the problems."""
    right = [i for i, correct in enumerate(facts.correct) if correct]
    wrong = [i for i, correct in enumerate(facts.correct) if not correct]
    if not right or not wrong:
        return list(range(len(facts.correct)))
    ratio = settings.target_correct_ratio
    wanted_right = min(len(right), round(len(wrong) * ratio / (1 - ratio)))
    wanted_wrong = min(len(wrong), round(len(right) * (1 - ratio) / ratio))
    draw = random.Random(f"balance/{settings.seed}/{settings.step}")
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
    """Position -> +gap/2 or -gap/2; 0 in a group that lacks a class or has margin enough."""
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


def plan(facts: StepFacts, settings: MethodSettings) -> Plan:
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
    advantage=advantage,
    plan=plan,
    plan_reads_student=True,
    compares_samples=True,
    loss_agg_mode="token-mean",
    clamp=None,
)
