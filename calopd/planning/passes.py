"""Passes of a trajectory through the student, by the method and the settings of the learner."""

from dataclasses import dataclass
from typing import Self

from calopd.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Work of a rank for one trajectory."""

    recomputes: bool = True
    """Whether the backward pass computes the activations of the layers again."""
    trains_all: bool = True
    """Whether the weights have gradients, and not adapters (LoRA) alone."""
    compiled: bool = False
    reference: bool = False
    """Whether the initial student scores the tokens too."""
    waits: bool = False
    """Whether the method must see the whole step before its first gradient."""
    looks: bool = False
    """Whether it reads the student for that, in one more forward pass."""

    @classmethod
    def of(cls, config: Config) -> Self:
        method, learner = config.method.method, config.learner
        return cls(
            recomputes=learner.recompute_activations is not False,  # "auto" recomputes on GPUs
            trains_all=not learner.lora_rank,
            compiled=learner.compile,
            reference=method.uses_reference,
            waits=method.plans_whole_step,
            looks=method.plan_reads_student,
        )
