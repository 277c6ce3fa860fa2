"""The frozen initial student, scoring the tokens that the student wrote."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from calopd.config import Config
from services.learner.accumulator import Scorer
from services.learner.lora import adapters_off
from services.learner.micro_batch import MicroBatch
from services.learner.ranks import Ranks
from services.learner.student import Student, load_student, shard


def frozen_reference(config: Config, ranks: Ranks, student: Student) -> Scorer:
    """The student with its adapters off, or else a copy of the initial one, sharded like it and never trained."""
    frozen = student
    off: Callable[[Student], AbstractContextManager[Any]] = adapters_off
    if student.lora_scale is None:
        frozen, off = load_student(config.student.path, config.learner), nullcontext
        frozen.requires_grad_(False).eval()
        shard(frozen, ranks.mesh, config.learner.compute_dtype)

    def score(batch: MicroBatch) -> torch.Tensor:
        with torch.no_grad(), off(frozen):
            logprobs: torch.Tensor = frozen(batch.ids_BL, batch.rows_T, batch.targets_T)[1].logprobs
        return logprobs

    return score
