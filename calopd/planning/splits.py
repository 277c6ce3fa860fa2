"""Every split of the GPUs over the three roles, simulated; the fastest that fits comes first."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

from calopd.config import Config
from calopd.core.errors import ConfigError
from calopd.planning.decode_batch import RolloutReplica
from calopd.planning.fits import RoleFit, role_fits
from calopd.planning.gpus import GPU
from calopd.planning.learner_memory import trained_parameters
from calopd.planning.lengths import PAPER_LENGTHS, Lengths, draw_lengths
from calopd.planning.model_shapes import ModelShape, load_shape
from calopd.planning.passes import Passes
from calopd.planning.prompt_lengths import PROMPT_TOKENS, prompt_lengths
from calopd.planning.rates import (
    ASSUMED,
    BF16,
    Efficiency,
    decode_seconds,
    forward_seconds,
    learning_seconds,
    optimizer_seconds,
    prefill_seconds,
    scoring_seconds,
)
from calopd.planning.role_needs import rollout_cache
from calopd.planning.rollout_limits import rollout_limits
from calopd.planning.step_simulation import StepModel, StepTimes

STEPS = 2
"""Steps that are simulated, with lengths of their own; the mean counts."""


@dataclass(frozen=True, slots=True)
class Split:
    """A split of the GPUs, with its predicted times."""

    teacher: int
    rollout: int
    learner: int
    strict: StepTimes
    stale: StepTimes
    phases: float
    fits: tuple[RoleFit, ...]

    @property
    def fits_all(self) -> bool:
        return all(fit.fits for fit in self.fits)

    def toml(self, gpu: str) -> str:
        """The section of a configuration that asks for this split."""
        count = self.teacher + self.rollout + self.learner
        roles = f"teacher = {self.teacher}\nrollout = {self.rollout}\nlearner = {self.learner}"
        return f'[resources]\ngpu = "{gpu}"\nhost_gpus = {count}\n{roles}'


def with_split(config: Config, gpu: str, teacher: int, rollout: int, learner: int) -> Config:
    """The configuration with another split."""
    values = tomllib.loads(config.to_toml())
    count = teacher + rollout + learner
    values["resources"] = {
        "gpu": gpu, "host_gpus": count, "teacher": teacher, "rollout": rollout, "learner": learner,
    }  # fmt: skip
    for role, key in (("teacher", "replicas"), ("rollout", "replicas"), ("learner", "ranks")):
        values.get(role, {}).pop(key, None)
    return Config.model_validate(values)


def plan_splits(
    config: Config, gpu: GPU, count: int, efficiency: Efficiency = ASSUMED, responses: Lengths = PAPER_LENGTHS
) -> list[Split]:
    """All splits of `count` GPUs, those that fit first, the fastest first."""
    student, teacher = shapes(config)
    counts = list(_splits(count, config))
    if not counts:
        sizes = (config.teacher.tensor_parallel_size, config.rollout.tensor_parallel_size, 1)
        raise ConfigError(
            f"{count} GPUs cannot be split: one teacher, one rollout and one learner rank need {sum(sizes)} "
            f"({sizes[0]} + {sizes[1]} + {sizes[2]}, by tensor_parallel_size). Give a larger --count"
        )
    # The limits of the engine follow from the GPU, not from the number of replicas.
    replica = rollout_replica(with_split(config, gpu.name, *counts[0]), student, gpu, efficiency)
    lengths = [
        draw_lengths(config.learner.trajectories, s, limit=config.rollout.max_tokens, quantiles=responses.quantiles)
        for s in range(STEPS)
    ]
    splits = []
    for teachers, rollouts, learners in counts:
        model = step_model(config, student, teacher, gpu, (teachers, rollouts, learners), replica, efficiency)
        splits.append(
            Split(
                teachers,
                rollouts,
                learners,
                _mean([model.strict(step) for step in lengths]),
                _mean([model.stale(step) for step in lengths]),
                sum(model.phases(step) for step in lengths) / STEPS,
                role_fits(with_split(config, gpu.name, teachers, rollouts, learners), gpu.memory_gib),
            )
        )
    return sorted(splits, key=lambda split: (not split.fits_all, split.strict.step))


def shapes(config: Config) -> tuple[ModelShape, ModelShape]:
    """The shapes of student and teacher."""
    found = []
    for key, path in (("student.path", config.student.path), ("teacher.path", config.teacher.path)):
        shape = load_shape(path)
        if shape is None:
            raise ConfigError(
                f"{key} = {path!r}: the shape of this model is not known here. Download it first (`calopd download`), "
                "or name a directory with its config.json"
            )
        found.append(shape)
    return found[0], found[1]


def step_model(
    config: Config,
    student: ModelShape,
    teacher: ModelShape,
    gpu: GPU,
    split: tuple[int, int, int],
    replica: RolloutReplica,
    efficiency: Efficiency = ASSUMED,
) -> StepModel:
    """The times of a split's processes on this GPU."""
    teachers, rollouts, learners = split
    prompts = prompt_lengths(config.method.scored_contexts(), config.method.known_contexts)
    passes = Passes.of(config)
    policy, split_over = student.weight_bytes(BF16), config.teacher.tensor_parallel_size

    def forward(tokens: int) -> float:
        return forward_seconds(student, gpu, PROMPT_TOKENS, tokens, efficiency, passes)

    def learning(tokens: int) -> float:
        reference = forward(tokens) if passes.reference else 0.0
        return learning_seconds(student, gpu, PROMPT_TOKENS, tokens, efficiency, passes) + reference

    looking = (forward if passes.looks else lambda tokens: 0.0) if passes.waits else None
    return StepModel(
        replica=replica,
        rollouts=rollouts // config.rollout.tensor_parallel_size,
        teachers=teachers // split_over,
        ranks=learners,
        scoring=lambda tokens: scoring_seconds(teacher, gpu, prompts, tokens, efficiency) / split_over,
        learning=learning,
        looking=looking,
        optimizer=optimizer_seconds(trained_parameters(student, config.learner), gpu, learners, efficiency),
        publish=policy / efficiency.publish_bytes_per_second,
        load=policy / efficiency.load_bytes_per_second,
    )


def rollout_replica(config: Config, student: ModelShape, gpu: GPU, efficiency: Efficiency) -> RolloutReplica:
    """One rollout on this GPU."""
    gpus = config.rollout.tensor_parallel_size
    return RolloutReplica(
        max_sequences=rollout_limits(config).max_in_flight,
        capacity_tokens=max(1, rollout_cache(config, student, gpu.memory_gib)),
        prompt_tokens=PROMPT_TOKENS,
        token_seconds=lambda running, cached: decode_seconds(student, gpu, running, cached, efficiency, gpus),
        prefill_seconds=lambda tokens: prefill_seconds(student, gpu, tokens, efficiency, gpus),
    )


def _splits(count: int, config: Config) -> Iterator[tuple[int, int, int]]:
    """Numbers of GPUs of teachers, rollouts and learner, multiples of what one process of each needs."""
    for teacher in range(config.teacher.tensor_parallel_size, count, config.teacher.tensor_parallel_size):
        for rollout in range(config.rollout.tensor_parallel_size, count - teacher, config.rollout.tensor_parallel_size):
            yield teacher, rollout, count - teacher - rollout


def _mean(steps: list[StepTimes]) -> StepTimes:
    columns = zip(*((s.step, s.rollout, s.teacher, s.learner, s.publish) for s in steps), strict=True)
    return StepTimes(*(sum(column) / len(steps) for column in columns))
