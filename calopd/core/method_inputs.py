"""The input of a method: the tokens of some trajectories, and the facts of a whole step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The step that is being learnt."""

    step: int = 0
    seed: int = 0
    """The run's seed."""
    recorded_ratio: float = 1.0
    """r_k or z_k of the recorded run at this step, for a method that follows one."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The response tokens of some trajectories, concatenated."""

    student_logprobs: Tensor
    """[T], detached."""
    teacher_logprobs: Tensor
    """[T], under c0, or under the privileged context of a method that has one."""
    probe_logprobs: Tensor
    """[C, T], under the probes; C = 0 for a method without probes."""
    reference_logprobs: Tensor | None = None
    """[T], of the frozen initial student, for a method that asks for it."""
    planned: Mapping[str, Tensor] = field(default_factory=dict)
    """[T] tensors by name: the values that the method's plan gave to these tokens."""
    step: StepInfo = StepInfo()

    def part(self, rows: slice, student_logprobs: Tensor) -> TokenBatch:
        """Some of the tokens, with the student's log-probabilities of them."""
        reference = self.reference_logprobs
        return TokenBatch(
            student_logprobs,
            self.teacher_logprobs[rows],
            self.probe_logprobs[:, rows],
            None if reference is None else reference[rows],
            {name: values[rows] for name, values in self.planned.items()},
            self.step,
        )


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Facts about all trajectories of a step, in the order of their tickets."""

    indices: list[int]
    problem_ids: list[str]
    lengths: list[int]
    correct: list[bool]
    mean_gaps: list[float]
    """R_i = mean_t(lT - lS); empty if the method does not ask for it."""
    step: StepInfo = StepInfo()

    @classmethod
    def merge(cls, parts: Sequence[StepFacts]) -> StepFacts:
        """Join the facts of several micro-batches, in the order of their tickets."""
        names = [f.name for f in fields(cls) if f.name != "step"]
        joined: dict[str, list[Any]] = {name: [x for part in parts for x in getattr(part, name)] for name in names}
        order = sorted(range(len(joined["indices"])), key=joined["indices"].__getitem__)
        columns = {name: [column[i] for i in order] if column else [] for name, column in joined.items()}
        return cls(**columns, step=parts[0].step if parts else StepInfo())


StepPlan: TypeAlias = Mapping[int, "Mapping[str, Tensor] | None"]
"""Ticket index -> named values of its tokens ([T], or a scalar for all); None = the trajectory is dropped."""
