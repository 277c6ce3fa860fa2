"""A trainer without a model: real trajectories, objective, metrics and checkpoints, and the time of a GPU."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from calopd.config import Config
from calopd.core.lm_head import HeadScores
from calopd.core.method_inputs import StepFacts, StepPlan
from calopd.core.types import Trajectory
from calopd.models.packing import Packed
from calopd.planning.emulation import Emulation
from calopd.rundir.tensor_files import TensorSpec, TensorStream
from services.learner.ranks import Ranks
from services.learner.student import HeadObjective, Student
from services.learner.trainer import Trainer

ENTROPY = 0.3
"""Entropy of every token, in nats."""
LOGPROB = -0.5


class EmulatedStudent(Student):
    """One parameter instead of a model. Its passes take as long as those of a rank on a GPU."""

    def __init__(self, emulation: Emulation, ranks: Ranks) -> None:
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.ones(1))
        self.lora_scale = None
        self._emulation, self._ranks, self.pacer = emulation, ranks, emulation.pacer()
        self.pending = 0.0
        """Emulated seconds of the passes since the trainer last let them go by."""

    def forward(
        self, packed: Packed, rows_T: Tensor, targets_T: Tensor, objective: HeadObjective | None = None
    ) -> tuple[Tensor, HeadScores]:
        """Add the time that the slowest rank needs: FSDP gathers each layer from all ranks."""
        spend = self._emulation.learning if objective is not None else self._emulation.forward
        ends = torch.tensor([len(own) for own in packed.rows]).cumsum(0)
        responses = torch.bincount(torch.bucketize(rows_T, ends, right=True), minlength=len(ends)).tolist()
        # One row is the dummy of a rank without trajectories.
        pairs = zip(packed.rows, responses, strict=True) if len(rows_T) > 1 else ()
        seconds = sum(spend(len(own) - response, response) for own, response in pairs)
        self.pending += max(self._ranks.gather(seconds))
        logprobs = torch.full(targets_T.shape, LOGPROB)
        entropy = torch.full(targets_T.shape, ENTROPY)
        if objective is None:
            return torch.zeros(()), HeadScores(logprobs, entropy=entropy)
        top_k = objective.top_k
        scores = HeadScores(
            logprobs,
            top_ids=torch.arange(top_k).expand(len(targets_T), top_k) if top_k else None,
            top_logprobs=torch.full((len(targets_T), top_k), LOGPROB) if top_k else None,
            entropy=entropy,
            forward_kl=torch.zeros(targets_T.shape) if objective.forward_kl is not None else None,
        )
        loss = (objective.coefficients(slice(0, len(logprobs)), logprobs) * logprobs).sum()
        return loss * self.weight.sum(), scores


class EmulatedTrainer(Trainer):
    """Student, optimizer and checkpoints of one rank, without weights."""

    def __init__(self, config: Config, ranks: Ranks, emulation: Emulation) -> None:
        self._emulation = emulation
        self._emulated = EmulatedStudent(emulation, ranks)
        super().__init__(config, ranks)

    def _load_student(self) -> Student:
        return self._emulated

    @contextmanager
    def _timed(self, name: str, trajectories: list[Trajectory]) -> Iterator[None]:
        """Compute metrics while the emulated GPU is busy, as a CPU that launches kernels does."""
        with super()._timed(name, trajectories):
            self._emulated.pacer.begin()
            yield
            self._spend_pending()

    def _spend_pending(self) -> None:
        seconds, self._emulated.pending = self._emulated.pending, 0.0
        self._emulated.pacer.spend(seconds)

    @property
    def needs_whole_step(self) -> bool:
        return self._emulation.phases or super().needs_whole_step

    def plan(self, facts: Sequence[StepFacts]) -> StepPlan | None:
        return super().plan(facts) if self._config.method.method.plan is not None else None

    def policy_weights(self) -> TensorStream:
        """The one parameter, after the time that a real policy takes."""

        def tensors() -> Iterator[Tensor]:
            self._emulated.pacer.spend(self._emulation.publish)
            yield self._emulated.weight.detach()

        return TensorStream([TensorSpec("emulated", torch.float32, (1,))], tensors())

    def _optimize(self, divisor: int, rate: float) -> float:
        self._emulated.pacer.spend(self._emulation.optimizer)
        return super()._optimize(divisor, rate)
