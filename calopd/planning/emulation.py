"""The clock of emulated engines: the plan's seconds on a GPU, scaled so that minutes become seconds."""

import time
from dataclasses import dataclass
from typing import Self

from calopd.config import Config
from calopd.config.nearest import nearest
from calopd.core.errors import ConfigError
from calopd.core.options import EMULATED
from calopd.planning.decode_batch import RolloutReplica
from calopd.planning.gpus import GPU, GPUS
from calopd.planning.learner_memory import trained_parameters
from calopd.planning.lengths import length_of_seed
from calopd.planning.model_shapes import ModelShape
from calopd.planning.passes import Passes
from calopd.planning.rates import (
    ASSUMED,
    BF16,
    Efficiency,
    forward_seconds,
    learning_seconds,
    optimizer_seconds,
    scoring_seconds,
)
from calopd.planning.splits import rollout_replica, shapes, step_model
from calopd.planning.step_simulation import StepModel

LAG_SECONDS = 0.005
"""Delays up to this are made up for: the next sleep starts where the last one should have ended."""


class Pacer:
    """Lets emulated seconds pass, without adding up the delays of a busy machine."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._due = 0.0
        self._start: float | None = None

    def begin(self) -> None:
        """The work starts now: what this process computes until `spend` runs beside the emulated GPU."""
        now = time.monotonic()
        self._start = self._due if now - self._due < LAG_SECONDS else now

    def spend(self, seconds: float) -> None:
        """Sleep until these emulated seconds have passed since `begin`, or since now if it was not called."""
        if self._start is None:
            self.begin()
        assert self._start is not None
        self._due, self._start = self._start + seconds * self._scale, None
        if (rest := self._due - time.monotonic()) > 0:
            time.sleep(rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """Seconds of every role of a run on its emulated GPUs."""

    config: Config
    gpu: GPU
    student: ModelShape
    teacher: ModelShape
    efficiency: Efficiency = ASSUMED

    @classmethod
    def of(cls, config: Config) -> Self | None:
        """The emulation of a run; None if its engines are real."""
        if not config.emulated:
            return None
        name = (config.emulation.gpu or config.resources.gpu).lower()
        if name not in GPUS:
            raise ConfigError(f"emulation.gpu = {name!r}: not in the table{nearest(name, GPUS)}")
        student, teacher = shapes(config)
        return cls(config=config, gpu=GPUS[name], student=student, teacher=teacher)

    @property
    def name(self) -> str:
        """The name of an engine, wherever it is shown."""
        return f"{EMULATED} {self.gpu.name}"

    @property
    def phases(self) -> bool:
        return self.config.emulation.phases

    @property
    def scale(self) -> float:
        return self.config.emulation.time_scale

    def pacer(self) -> Pacer:
        return Pacer(self.scale)

    @property
    def replica(self) -> RolloutReplica:
        return rollout_replica(self.config, self.student, self.gpu, self.efficiency)

    def response_length(self, seed: int) -> int:
        """Tokens of the response with this seed: the same whichever process asks."""
        limit = self.config.rollout.max_tokens
        fixed = self.config.emulation.response_tokens
        return min(limit, fixed) if fixed else length_of_seed(seed, limit=limit)

    def scoring(self, prompt: int, response: int) -> float:
        """A teacher's time for one response under one context."""
        seconds = scoring_seconds(self.teacher, self.gpu, [prompt], response, self.efficiency)
        return seconds / self.config.teacher.tensor_parallel_size

    def learning(self, prompt: int, response: int) -> float:
        """A rank's time for forward and backward pass of one trajectory."""
        return learning_seconds(self.student, self.gpu, prompt, response, self.efficiency, Passes.of(self.config))

    def forward(self, prompt: int, response: int) -> float:
        """A rank's time for a forward pass alone."""
        return forward_seconds(self.student, self.gpu, prompt, response, self.efficiency, Passes.of(self.config))

    @property
    def optimizer(self) -> float:
        learner = self.config.learner
        return optimizer_seconds(trained_parameters(self.student, learner), self.gpu, learner.ranks, self.efficiency)

    @property
    def publish(self) -> float:
        """Gathering, writing and hashing of a policy."""
        return self.student.weight_bytes(BF16) / self.efficiency.publish_bytes_per_second

    @property
    def load(self) -> float:
        """Verifying and loading of a policy."""
        return self.student.weight_bytes(BF16) / self.efficiency.load_bytes_per_second

    def step_model(self) -> StepModel:
        """The plan's model of this run."""
        config = self.config
        gpus = (
            config.teacher.replicas * config.teacher.tensor_parallel_size,
            config.rollout.replicas * config.rollout.tensor_parallel_size,
            config.learner.ranks,
        )
        return step_model(config, self.student, self.teacher, self.gpu, gpus, self.replica, self.efficiency)
