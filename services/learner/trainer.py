"""One rank's share of training: gradients summed over micro-batches, the optimizer step, checkpoints, weights."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from calopd.config import Config
from calopd.core.method_inputs import StepFacts, StepInfo, StepPlan
from calopd.core.methods.base import RecordedSettings
from calopd.core.step_result import StepResult, StepSums
from calopd.core.types import Trajectory
from calopd.models.devices import choose_dtype
from calopd.rundir.checkpoints import Record
from calopd.rundir.recorded_ratios import recorded_ratios
from calopd.rundir.tensor_files import TensorStream
from calopd.tracking.trace import span
from services.learner import checkpoint
from services.learner.accumulator import Accumulator
from services.learner.checkpoint import Checkpointer, Durable
from services.learner.export import own_dtype
from services.learner.full_weights import full_weights
from services.learner.optimizer import adamw
from services.learner.ranks import Ranks
from services.learner.reference import frozen_reference
from services.learner.schedule import learning_rate
from services.learner.student import Student, load_student, shard


@dataclass(frozen=True, slots=True)
class Update:
    """An optimizer step."""

    learning_rate: float
    gradient_norm: float
    """Before clipping; 0 if no token was left to learn from, and the optimizer did not step."""
    denominator: int
    """Divisor of the summed gradient: trajectories or tokens of the step, as the aggregation asks."""
    seconds: float


class Trainer:
    """Student, optimizer and reference of one rank. Every rank makes the same calls in the same order."""

    def __init__(self, config: Config, ranks: Ranks) -> None:
        self._config, self._ranks = config, ranks
        torch.manual_seed(config.run.seed)
        settings = config.learner
        self.student = self._load_student()
        self._optimizer = adamw(self.student, settings)
        self._checkpointer = Checkpointer(config.run_dir, ranks, settings.keep_checkpoints)
        self._recorded: list[float] = []
        if isinstance(config.method.settings, RecordedSettings):
            directory = Path(config.method.settings.recorded_run)
            self._recorded = recorded_ratios(directory, config.method.method.recorded, config.run.steps)
        uses_reference = config.method.method.uses_reference
        self._reference = frozen_reference(config, ranks, self.student) if uses_reference else None

    def _load_student(self) -> Student:
        """The initial student, sharded over the ranks."""
        config, ranks, settings = self._config, self._ranks, self._config.learner
        dtype = choose_dtype(settings.compute_dtype, ranks.device)
        student = load_student(config.student.path, settings, dtype)
        shard(student, ranks.mesh, dtype, offload=settings.offload_optimizer, compiled=settings.compile)
        return student

    def load(self, directory: Path) -> Record:
        """Restore a checkpoint."""
        return checkpoint.load(directory, self.student, self._optimizer)

    def save(self, record: Record) -> None:
        """Copy the state and start to write it as a checkpoint in the background; none may be under way."""
        self._checkpointer.begin(self.student, self._optimizer, record)

    def saved(self, *, wait: bool = False) -> Durable | None:
        """The checkpoint that became durable since the last call; with `wait`, after waiting for one under way."""
        return self._checkpointer.finished(wait=wait)

    def policy_weights(self) -> TensorStream:
        """The whole student in the data type that the rollout samples with; every rank reads the stream to its end."""
        return full_weights(self.student, choose_dtype(self._config.rollout.dtype, self._ranks.device))

    def exported_weights(self) -> TensorStream:
        """The whole student in the data type that it was loaded from."""
        return full_weights(self.student, own_dtype(self._config.student.path))

    def begin(self, step: int) -> None:
        """Start a step without gradients."""
        steps, learner = self._config.run.steps, self._config.learner
        self._step = step
        self._show_below = learner.show_trajectories if step in (0, steps // 2, steps - 1) else 0
        self._accumulator = Accumulator(
            self.student,
            self._config.method,
            StepInfo(step, self._config.run.seed, self._recorded[step] if self._recorded else 1.0),
            self._ranks.device,
            world_size=self._ranks.size,
            reference=self._reference,
            max_staleness=self._config.run.max_staleness,
        )

    @property
    def needs_whole_step(self) -> bool:
        """Whether the method must see all trajectories of a step before it learns from the first."""
        return self._config.method.method.plans_whole_step

    def look(self, trajectories: list[Trajectory]) -> StepFacts | None:
        """The facts that a plan needs of one micro-batch; an empty one takes part in the collectives of other ranks."""
        with self._timed("look", trajectories):
            if trajectories:
                return self._accumulator.look(trajectories)
            self._accumulator.look_at_nothing()
            return None

    def plan(self, facts: Sequence[StepFacts]) -> StepPlan | None:
        """The method's plan of the step, from the facts of all ranks."""
        make_plan = self._config.method.method.plan
        assert make_plan is not None
        return make_plan(StepFacts.merge(facts), self._config.method.settings)

    def learn(self, trajectories: list[Trajectory], plan: StepPlan | None) -> None:
        """Forward and backward over one micro-batch; an empty one takes part in the collectives of the other ranks.

        `plan` is that of the whole step, if the method needs one.
        """
        with self._timed("learn", trajectories):
            if trajectories:
                if plan is None and self._config.method.method.plans_each_alone:
                    plan = self.plan([self._accumulator.look(trajectories)])
                self._accumulator.add(trajectories, plan, self._show_below)
            else:
                self._accumulator.add_nothing()

    @contextmanager
    def _timed(self, name: str, trajectories: list[Trajectory]) -> Iterator[None]:
        """Count the seconds of a pass: busy, or idle if this rank has no trajectories."""
        start = time.monotonic()
        tokens = sum(len(t.sample.response_ids) for t in trajectories)
        with span(name if trajectories else "pass without trajectories", trajectories=len(trajectories), tokens=tokens):
            yield
        self.result.sums.add(**{"learner_busy" if trajectories else "learner_idle": time.monotonic() - start})

    @property
    def result(self) -> StepResult:
        """The step so far, on this rank."""
        return self._accumulator.result

    def optimizer_step(self, sums: StepSums) -> Update:
        """Divide the summed gradient by the step's denominator, clip it and step; `sums` are those of all ranks."""
        learner, start = self._config.learner, time.monotonic()
        rate = learning_rate(
            self._step, steps=self._config.run.steps, peak=learner.learning_rate, warmup_steps=learner.warmup_steps
        )
        trajectories, tokens = int(sums.get("kept_trajectories")), int(sums.get("kept_tokens"))
        divisor = self._config.method.objective.denominator(trajectories, tokens)
        with span("optimizer step", step=self._step):
            norm = self._optimize(divisor, rate) if tokens else 0.0
        return Update(rate, norm, divisor, time.monotonic() - start)

    def _optimize(self, divisor: int, rate: float) -> float:
        parameters = [p for p in self.student.parameters() if p.grad is not None]
        for parameter in parameters:
            parameter.grad.mul_(1.0 / divisor)  # type: ignore[union-attr]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._config.learner.gradient_clip)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if not torch.isfinite(norm):
            raise RuntimeError(f"the gradient norm is {norm.item()}: the optimizer step was not taken or saved")
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(norm)
