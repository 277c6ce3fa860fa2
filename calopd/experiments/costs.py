"""The cost of a job before it runs: by the planner's model on GPUs, by measured times elsewhere."""

from dataclasses import dataclass

from calopd.config import Config
from calopd.core.contexts import BASE, CONTEXTS
from calopd.core.errors import ConfigError
from calopd.core.paper_results import BENCHMARK_SIZES, TEACHER
from calopd.evaluation.benchmark_table import HUB
from calopd.experiments.experiment_file import EstimatePart, Experiment
from calopd.experiments.planned_runs import BaselineJob, ExperimentJob, RunJob, StudyJob
from calopd.planning.gpus import gpu_named
from calopd.planning.lengths import draw_lengths
from calopd.planning.model_shapes import ModelShape
from calopd.planning.passes import Passes
from calopd.planning.prompt_lengths import prompt_lengths
from calopd.planning.rates import ASSUMED, scoring_seconds
from calopd.planning.splits import rollout_replica, shapes, step_model
from calopd.planning.step_simulation import sample_times
from calopd.study.collection import PAPER_TOKENS

SIMULATED_STEPS = 2
FULL = 3
"""Responses that are simulated at most, as a multiple of those sampled at once."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted hours of a job and the GPUs that it occupies; 0 GPUs = a machine without."""

    training_hours: float
    evaluation_hours: float
    gpus: int

    @property
    def hours(self) -> float:
        return self.training_hours + self.evaluation_hours

    @property
    def gpu_hours(self) -> float:
        return self.hours * self.gpus


class CostModel:
    """Costs of the jobs of an experiment; the sampling of equal evaluations is simulated once."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._evaluations: dict[tuple[str, int], float] = {}
        self._steps: dict[tuple[object, ...], float] = {}

    def cost(self, job: ExperimentJob) -> Cost | None:
        """The predicted cost; None if neither the planner nor the file has an estimate."""
        if self._experiment.estimate is not None:
            return self._measured(job, self._experiment.estimate)
        placement = job.config.placement
        if not (job.config.resources.gpu and placement.teachers and placement.rollouts and placement.learner):
            return None
        try:
            return self._planned(job)
        except ConfigError:  # the GPU, or the shape of a model, is not known here
            return None

    def _measured(self, job: ExperimentJob, estimate: EstimatePart) -> Cost:
        steps = job.config.run.steps if isinstance(job, RunJob) else 0
        return Cost(steps * estimate.seconds_per_step / 3600, estimate.seconds_per_run / 3600, 0)

    def _planned(self, job: ExperimentJob) -> Cost:
        gpus = len(job.config.placement.gpus)
        if isinstance(job, StudyJob):
            tokens = self._experiment.studies[job.study].tokens or PAPER_TOKENS
            return Cost(_study_seconds(job, tokens) / 3600, 0.0, gpus)
        training = job.config.run.steps * self._step_seconds(job.config) if isinstance(job, RunJob) else 0.0
        return Cost(training / 3600, self._evaluation_seconds(job, gpus) / 3600, gpus)

    def _step_seconds(self, config: Config) -> float:
        """All that the time of a step depends on is the key."""
        method, learner = config.method, config.learner
        prompts = prompt_lengths(method.scored_contexts(), method.known_contexts)
        key = (
            config.student.path, config.teacher.path, config.resources, config.rollout.max_tokens, tuple(prompts),
            Passes.of(config), learner.trajectories, learner.lora_rank,
        )  # fmt: skip
        if key not in self._steps:
            self._steps[key] = _step_seconds(config)
        return self._steps[key]

    def _evaluation_seconds(self, job: RunJob | BaselineJob, gpus: int) -> float:
        evaluation, teacher = self._experiment.evaluation, isinstance(job, BaselineJob) and job.role == TEACHER
        key = (job.config.teacher.path if teacher else job.config.student.path, gpus)
        if key not in self._evaluations:
            samples = evaluation.n * sum(map(_size, evaluation.benchmarks))
            shape = shapes(job.config)[1 if teacher else 0]
            self._evaluations[key] = _sampling_seconds(
                job.config, shape, samples, evaluation.max_tokens, evaluation.in_flight, gpus
            )
        return self._evaluations[key]


def _size(benchmark: str) -> int:
    """Problems of a benchmark of the paper; of a file, its lines."""
    if benchmark in HUB:
        return BENCHMARK_SIZES[HUB[benchmark][0]]
    with open(benchmark, encoding="utf-8") as file:
        return sum(1 for _ in file)


def _step_seconds(config: Config) -> float:
    student, teacher = shapes(config)
    gpu, placement = gpu_named(config.resources.gpu), config.placement
    split = sum(map(len, placement.teachers)), sum(map(len, placement.rollouts)), len(placement.learner)
    model = step_model(config, student, teacher, gpu, split, rollout_replica(config, student, gpu, ASSUMED))
    draws = [
        draw_lengths(config.learner.trajectories, seed, limit=config.rollout.max_tokens)
        for seed in range(SIMULATED_STEPS)
    ]
    return sum(model.strict(lengths).step for lengths in draws) / SIMULATED_STEPS


def _sampling_seconds(
    config: Config, shape: ModelShape, samples: int, limit: int, in_flight: int, processes: int
) -> float:
    """Time until the first of several processes has sampled its share of the responses."""
    rollout = config.rollout.model_copy(update={"max_in_flight": in_flight})
    gpu = gpu_named(config.resources.gpu)
    replica = rollout_replica(config.model_copy(update={"rollout": rollout}), shape, gpu, ASSUMED)
    share = -(-samples // processes)
    # Once the engine is full, twice the responses take twice the time.
    simulated = min(share, FULL * in_flight)
    lengths = draw_lengths(simulated, 0, limit=limit)
    return max(sample_times(replica, tuple(lengths))[0], default=0.0) * share / max(1, simulated)


def _study_seconds(job: StudyJob, tokens: int) -> float:
    """Sampling and scoring overlap: the slower one counts. Recorded rollouts are not sampled."""
    config = job.config
    gpu, (student, teacher) = gpu_named(config.resources.gpu), shapes(config)
    lengths = draw_lengths(config.learner.trajectories, 0, limit=config.rollout.max_tokens)
    responses = tokens * len(lengths) // sum(lengths)
    prompts = prompt_lengths([BASE, *CONTEXTS])
    each = sum(scoring_seconds(teacher, gpu, prompts, length, ASSUMED) for length in lengths) / len(lengths)
    scoring = responses * each / len(config.placement.teachers)
    if job.recorded is not None:
        return scoring
    limit, in_flight, processes = config.rollout.max_tokens, config.rollout.max_in_flight, config.rollout.replicas
    return max(scoring, _sampling_seconds(config, student, responses, limit, in_flight, processes))
