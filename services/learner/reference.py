"""The frozen initial student, scoring the tokens that the student wrote."""

import torch

from calopd.config import Config
from services.learner.accumulator import Scorer
from services.learner.micro_batch import MicroBatch
from services.learner.ranks import Ranks
from services.learner.student import load_student, shard


def frozen_reference(config: Config, ranks: Ranks) -> Scorer:
    """A copy of the initial student, sharded like it and never trained."""
    copy = load_student(config.student.path, chunk=config.learner.chunk, recompute_activations=False)
    copy.requires_grad_(False).eval()
    shard(copy, ranks.mesh, config.learner.compute_dtype)

    def score(batch: MicroBatch) -> torch.Tensor:
        with torch.no_grad():
            logprobs: torch.Tensor = copy(batch.ids_BL, batch.rows_T, batch.targets_T)[1].logprobs
        return logprobs

    return score
