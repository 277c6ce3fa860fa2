"""The reference model: the frozen initial student, which scores the student's responses."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from calopd.config import Config
from calopd.models.devices import choose_dtype
from services.learner.accumulator import Scorer
from services.learner.lora import adapters_disabled
from services.learner.micro_batch import MicroBatch
from services.learner.ranks import Ranks
from services.learner.student import Student, load_student, shard


def frozen_reference(config: Config, ranks: Ranks, student: Student) -> Scorer:
    """The student with its adapters disabled; for a student without adapters, a frozen copy, sharded like it."""
    frozen = student
    initial_weights: Callable[[Student], AbstractContextManager[Any]] = adapters_disabled
    if student.lora_scale is None:
        dtype, offload = choose_dtype(config.learner.compute_dtype, ranks.device), config.learner.offload_optimizer
        frozen = load_student(config.student.path, config.learner, dtype, frozen=True)
        initial_weights = nullcontext
        frozen.requires_grad_(False).eval()
        shard(frozen, ranks.mesh, dtype, offload=offload, compiled=config.learner.compile)

    def score(batch: MicroBatch) -> torch.Tensor:
        with torch.no_grad(), initial_weights(frozen):
            logprobs: torch.Tensor = frozen(batch.packed, batch.rows_T, batch.targets_T)[1].logprobs
        return logprobs

    return score
