"""torchrun script: the gradient of one step, formed by the real accumulator on any number of ranks and micro-batches.

python -m torch.distributed.run ... -m tests.services.gradients MODEL OUT MODE BUDGET ORDER_SEED DETERMINISTIC
"""

import random
import sys
from pathlib import Path

import numpy as np
import torch

from calopd.config import MethodSection
from calopd.losses import denominator
from calopd.queue import Arrival
from calopd.types import Sample, Sampling, Scores, Ticket, Trajectory
from services.learner.feed import Cutter
from services.learner.micro_batch import Accumulator
from services.learner.ranks import Ranks
from services.learner.student import load_student, shard

COUNT = 24


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


def main(model: str, out: str, mode: str, budget: str, order_seed: str, deterministic: str) -> None:
    ranks = Ranks("cpu")
    student = load_student(model, chunk=64, recompute_activations=False)
    shard(student, ranks.mesh, "float32")
    everything = trajectories()
    accumulator = Accumulator(student, MethodSection(loss_agg_mode=mode), ranks.device, ranks.size)
    cutter = Cutter(COUNT, int(budget), deterministic=deterministic == "1")
    order = random.Random(int(order_seed)).sample(range(COUNT), COUNT)
    rounds = 0
    for start in range(0, COUNT, 5):
        sizes = [
            (i, len(everything[i].prompt_ids) + len(everything[i].sample.response_ids))
            for i in order[start : start + 5]
        ]
        cutter.arrive([Arrival(f"{i}-0", i, size) for i, size in sizes])
        while (round_ := cutter.take(ranks.size)) is not None:
            rounds += 1
            mine = [everything[i] for i in round_.micro_batches[ranks.rank]]
            accumulator.add(mine) if mine else accumulator.add_nothing()
    used = [index for part in ranks.gather(accumulator.used) for index in part]
    assert sorted(used) == list(range(COUNT))
    tokens = sum(len(t.sample.response_ids) for t in everything)
    divisor = denominator(COUNT, tokens, mode)
    gradient = {
        name.removeprefix("lm."): parameter.grad.full_tensor() / divisor
        for name, parameter in student.named_parameters()
    }
    losses = ranks.gather(accumulator.sums.sums["loss"] if accumulator.used else 0.0)
    if ranks.first:
        torch.save({"gradient": gradient, "rounds": rounds, "loss": sum(losses) / divisor}, Path(out))
    ranks.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
