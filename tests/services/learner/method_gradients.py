"""A program for the launcher: the gradient of one step for every method, by the real accumulator on these ranks.

python -m services.learner.launch … -m tests.services.learner.method_gradients MODELS OUT
"""

import json
import sys
from itertools import chain

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from calopd.config.sections import LearnerSection, MethodSection
from calopd.core.method_inputs import StepFacts, StepInfo
from calopd.core.types import Trajectory
from services.learner.accumulator import Accumulator
from services.learner.micro_batch import MicroBatch
from services.learner.ranks import Ranks
from services.learner.student import Student, shard
from tests.services.learner.test_packed_step import CASES, STEP, loaded, scored

Gradients = dict[str, Tensor]


def form(
    student: Student,
    section: MethodSection,
    micro_batches: list[list[Trajectory]],
    *,
    world_size: int,
    ranks: Ranks | None = None,
    step: StepInfo = STEP,
) -> Gradients:
    """The summed gradient of this rank's micro-batches and those of the others; an empty one is only taken part in."""

    def reference(batch: MicroBatch) -> Tensor:
        with torch.no_grad():
            return student(batch.packed, batch.rows_T, batch.targets_T)[1].logprobs

    uses_reference = section.method.uses_reference
    accumulator = Accumulator(
        student,
        section,
        step,
        torch.device("cpu"),
        world_size=world_size,
        reference=reference if uses_reference else None,
    )
    plan = None
    if section.method.plan is not None:
        own = []
        for trajectories in micro_batches:
            if trajectories:
                own.append(accumulator.look(trajectories))
            else:
                accumulator.look_at_nothing()
        facts = list(chain.from_iterable(ranks.gather(own))) if ranks else own
        plan = section.method.plan(StepFacts.merge(facts), section.objective.settings)
    for trajectories in micro_batches:
        accumulator.add(trajectories, plan) if trajectories else accumulator.add_nothing()
    found = {name: p.grad for name, p in student.named_parameters() if p.grad is not None}
    return {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in found.items()}


def main(models: str, out: str) -> None:
    ranks, everything = Ranks(LearnerSection(device="cpu")), scored()
    # Rank 0 has three micro-batches, rank 1 two and nothing to do in the last round.
    own = (
        [everything[:2], everything[5:6], everything[9:]] if ranks.rank == 0 else [everything[2:5], everything[6:9], []]
    )
    formed = {}
    for case, (model, method, learner) in CASES.items():
        student = loaded(json.loads(models)[model], **learner)
        shard(student, ranks.mesh, torch.float32)
        section = MethodSection(**method, overlap_top_k=0)
        formed[case] = form(student, section, own, world_size=ranks.size, ranks=ranks)
    if ranks.rank == 0:
        torch.save(formed, out)
    ranks.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
