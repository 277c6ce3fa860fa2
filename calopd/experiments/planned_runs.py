"""The plan of an experiment: its jobs in the order in which they are done, and what each waits for."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from calopd.config import Config, load_config
from calopd.config.extends import merge
from calopd.core.errors import ConfigError
from calopd.core.methods import METHODS
from calopd.core.paper_results import STUDENT, TEACHER
from calopd.experiments.experiment_file import Experiment
from calopd.experiments.layout import ExperimentDir
from calopd.experiments.variations import Variation, overrides, shown, variations

FOLLOWED = "recorded_run"
_OWN_KEYS = {"run.name", "run.dir", "run.seed", f"method.{FOLLOWED}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """Train one student, evaluate it."""

    name: str
    pair: str
    seed: int
    config: Config
    needs: tuple[str, ...] = ()
    """Names of the runs that must be finished first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineJob:
    """Evaluate a model that is not trained."""

    name: str
    pair: str
    role: str
    config: Config
    """The recipe of the pair, with the settings of all runs."""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyJob:
    """Collect and analyse a study."""

    name: str
    config: Config
    recorded: Path | None
    needs: tuple[str, ...] = ()

    @property
    def study(self) -> str:
        """The name in the file."""
        return self.name.removeprefix("study.")


ExperimentJob = RunJob | BaselineJob | StudyJob


@dataclass
class ExperimentPlan:
    name: str
    """Name of the file, without its ending."""
    experiment: Experiment
    jobs: list[ExperimentJob]
    run_names: dict[tuple[str, str, int], str] = field(default_factory=dict)
    """(pair, label of the variation, seed) -> name of the run."""

    @property
    def files(self) -> ExperimentDir:
        return ExperimentDir(self.experiment.dir)

    @cached_property
    def variations(self) -> dict[str, list[Variation]]:
        """Arm -> its variations."""
        return {name: variations(name, arm) for name, arm in self.experiment.arms.items()}

    @property
    def runs(self) -> list[RunJob]:
        return [job for job in self.jobs if isinstance(job, RunJob)]

    @property
    def baselines(self) -> list[BaselineJob]:
        return [job for job in self.jobs if isinstance(job, BaselineJob)]

    def run(self, pair: str, variation: Variation, seed: int) -> RunJob:
        name = self.run_names[pair, variation.label, seed]
        return next(job for job in self.runs if job.name == name)


def plan_experiment(file: Path, experiment: Experiment, environ: Mapping[str, str] = os.environ) -> ExperimentPlan:
    """Plan all jobs: baselines first, then seed by seed, a control behind the run that it follows, studies last."""
    plan = ExperimentPlan(file.stem, experiment, [])
    _check_labels(plan)
    common = overrides(experiment.set)
    recipes = {pair: load_config(path, common, environ) for pair, path in experiment.recipes.items()}
    if experiment.arms:
        plan.jobs += [
            BaselineJob(name=f"{pair}.{role}", pair=pair, role=role, config=config)
            for pair, config in recipes.items()
            for role in _baselines(experiment)
        ]
    made: dict[str, RunJob] = {}
    for seed in experiment.seeds:
        for pair in recipes:
            for arm in _ordered(plan):
                for variation in plan.variations[arm]:
                    job = _run(plan, pair, variation, seed, environ)
                    _check_same(made.get(job.name), job)
                    plan.run_names[pair, variation.label, seed] = job.name
                    if job.name not in made:
                        made[job.name] = job
                        plan.jobs.append(job)
    plan.jobs += [_study(plan, name, environ) for name in experiment.studies]
    return plan


def _baselines(experiment: Experiment) -> tuple[str, ...]:
    """Models that are measured without training: those of the evaluation, and the student for the discrepancy."""
    evaluated = experiment.evaluation.baselines if experiment.evaluation.benchmarks else ()
    return tuple(dict.fromkeys((*evaluated, *((STUDENT,) if experiment.discrepancy else ()))))


def _check_labels(plan: ExperimentPlan) -> None:
    """Labels name the rows of tables: two that are equal could not be told apart."""
    owner: dict[str, Variation] = {}
    for variation in (one for arm in plan.variations.values() for one in arm):
        if variation.label in owner:
            raise ConfigError(
                f"arms.{variation.arm} and arms.{owner[variation.label].arm} have the label {variation.label!r} twice: "
                "give each its own; {key} stands for the value of a grid's key"
            )
        owner[variation.label] = variation


def _ordered(plan: ExperimentPlan) -> list[str]:
    """The arms, those that follow another run at the end."""
    return sorted(plan.experiment.arms, key=lambda arm: _follows(plan, plan.variations[arm][0]))


def _follows(plan: ExperimentPlan, variation: Variation) -> bool:
    """Whether the variation's method follows a recorded run."""
    name = merge(plan.experiment.set, variation.settings).get("method", {}).get("name", "")
    return name in METHODS and bool(METHODS[name].recorded)


def _run(plan: ExperimentPlan, pair: str, variation: Variation, seed: int, environ: Mapping[str, str]) -> RunJob:
    recipe, common, files = plan.experiment.recipes[pair], plan.experiment.set, plan.files
    settings = merge(common, variation.settings)
    needs: tuple[str, ...] = ()
    followed = ""
    if _follows(plan, variation):
        arm = plan.experiment.arms[variation.arm].follows
        if arm not in plan.variations:
            raise ConfigError(
                f"arms.{variation.arm} follows a recorded run: set `follows` to an arm of the file "
                f"(given: {arm!r}; arms are {', '.join(plan.variations)})"
            )
        if len(plan.variations[arm]) > 1:
            raise ConfigError(f"arms.{variation.arm}.follows = {arm!r}, an arm with a grid: name one without")
        source = _run(plan, pair, plan.variations[arm][0], seed, environ)
        needs, followed = (source.name,), source.name.removeprefix(f"{pair}.").rpartition(".")[0]
        settings = merge(settings, {"method": {FOLLOWED: str(files.runs / source.name)}})
    own = {"run": {"dir": str(files.runs), "seed": seed}}
    config = load_config(recipe, overrides(merge(settings, own)), environ)
    plain_settings = merge(common, {"method": {"name": config.method.name}})
    if FOLLOWED in settings.get("method", {}):
        plain_settings = merge(plain_settings, {"method": {FOLLOWED: settings["method"][FOLLOWED]}})
    plain = load_config(recipe, overrides(plain_settings), environ)
    words = [pair, config.method.name, *_differences(config, plain)]
    if followed not in ("", "cal_opd"):
        words.append(f"of-{followed}")
    name = ".".join([*words, f"s{seed}"])
    named = config.model_copy(update={"run": config.run.model_copy(update={"name": name})})
    return RunJob(name=name, pair=pair, seed=seed, config=named, needs=needs)


def _differences(config: Config, plain: Config) -> list[str]:
    """The settings that distinguish a run from its method's plain run, as parts of a name."""
    ours, theirs = _flat(config), _flat(plain)
    words = []
    for key in sorted(ours.keys() | theirs.keys()):
        value = ours.get(key)
        if value != theirs.get(key) and key not in _OWN_KEYS:
            words.append(f"{key.rpartition('.')[2]}-{re.sub(r'[^A-Za-z0-9.]+', '-', shown(value))}")
    return words


def _flat(config: Config) -> dict[str, Any]:
    values = config.model_dump(mode="json")
    return {f"{section}.{key}": value for section, keys in values.items() for key, value in keys.items()}


def _check_same(earlier: RunJob | None, job: RunJob) -> None:
    """Two variations with one name must be one run; characters that a name cannot hold may have made them alike."""
    if earlier is not None and _flat(earlier.config) != _flat(job.config):
        raise ConfigError(
            f"two variations with different settings would both be the run {job.name}: change one of them"
        )


def _study(plan: ExperimentPlan, name: str, environ: Mapping[str, str]) -> StudyJob:
    part = plan.experiment.studies[name]
    settings = overrides(merge(plan.experiment.set, part.set))
    config = load_config(plan.experiment.recipes[part.recipe], settings, environ)
    recorded = plan.files.study(part.rollouts_of) if part.rollouts_of else None
    needs = (f"study.{part.rollouts_of}",) if part.rollouts_of else ()
    return StudyJob(name=f"study.{name}", config=config, recorded=recorded, needs=needs)


def evaluated_model(job: RunJob | BaselineJob) -> str:
    """The MODEL argument of an evaluation."""
    if isinstance(job, RunJob):
        return str(job.config.run_dir)
    return job.config.teacher.path if job.role == TEACHER else job.config.student.path
