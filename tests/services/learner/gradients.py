"""A program for the launcher: the gradient of one step, by the real accumulator on these ranks, in several groupings.

python -m services.learner.launch … -m tests.services.learner.gradients MODEL OUT CASES (a JSON list of `Case` values)
"""

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from calopd.config.sections import LearnerSection, MethodSection
from calopd.core.losses import LossAggMode
from calopd.core.method_inputs import StepInfo
from calopd.core.types import Sample, Sampling, Scores, Ticket, Trajectory
from calopd.transport.queue import Arrival
from services.learner.accumulator import Accumulator
from services.learner.batching import DynamicBatcher
from services.learner.ranks import Ranks
from services.learner.student import Student, load_student, shard

COUNT = 24


@dataclass(frozen=True)
class Case:
    mode: LossAggMode
    budget: int
    order: int
    """Seed of the order of arrival."""
    deterministic: bool = True

    @property
    def name(self) -> str:
        return f"{self.mode} {self.budget} {self.order} {self.deterministic}"


def trajectories() -> list[Trajectory]:
    draw = np.random.default_rng(0)
    out = []
    for index in range(COUNT):
        length = int(draw.integers(1, 40))
        teacher = -np.abs(draw.normal(3, 3, (3, length))).astype(np.float32)
        ticket = Ticket("r", "b", index, "p", 0, 0, 0, Sampling(), ("c0", "eval+", "eval-"))
        ids = draw.integers(3, 390, length, np.int32)
        sample = Sample(ids, np.full(length, -1, np.float32), False, 0, 0.0)
        scores = Scores(ticket.contexts, teacher, "r", 0.0)
        out.append(Trajectory(ticket, draw.integers(3, 390, 30, np.int32), sample, scores, False, False, "s", "w"))
    return out


def form(student: Student, ranks: Ranks, everything: list[Trajectory], case: Case) -> dict[str, Any]:
    student.zero_grad(set_to_none=True)
    section = MethodSection(loss_agg_mode=case.mode)
    accumulator = Accumulator(student, section, StepInfo(), ranks.device, world_size=ranks.size)
    batcher = DynamicBatcher(COUNT, case.budget, ranks=ranks.size, deterministic=case.deterministic)
    order = random.Random(case.order).sample(range(COUNT), COUNT)
    rounds = 0
    for start in range(0, COUNT, 5):
        part = [everything[i] for i in order[start : start + 5]]
        sizes = {t.ticket.index: len(t.prompt_ids) + len(t.sample.response_ids) for t in part}
        batcher.add([Arrival(f"{i}-0", i, size) for i, size in sizes.items()])
        while (assignment := batcher.take()) is not None:
            rounds += 1
            mine = [everything[i] for i in assignment[ranks.rank]]
            accumulator.add(mine) if mine else accumulator.add_nothing()
    used = [index for part in ranks.gather(accumulator.result.used) for index in part]
    assert sorted(used) == list(range(COUNT))
    divisor = section.objective.denominator(COUNT, sum(len(t.sample.response_ids) for t in everything))
    losses = ranks.gather(accumulator.result.sums.get("loss"))
    gradient = {
        name.removeprefix("lm."): cast(DTensor, parameter.grad).full_tensor() / divisor
        for name, parameter in student.named_parameters()
    }
    return {"gradient": gradient, "rounds": rounds, "loss": sum(losses) / divisor}


def main(model: str, out: str, cases: str) -> None:
    ranks = Ranks(LearnerSection(device="cpu"))
    # Recomputed activations on one rank and kept ones on several must come to the same.
    student = load_student(model, LearnerSection(chunk=64, recompute_activations=ranks.size == 1))
    shard(student, ranks.mesh, torch.float32)
    everything = trajectories()
    formed = {case.name: form(student, ranks, everything, case) for case in (Case(*c) for c in json.loads(cases))}
    if ranks.rank == 0:
        torch.save(formed, Path(out))
    ranks.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
