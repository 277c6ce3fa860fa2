"""The checks of an experiment before its first job, which may end hours before the one that would fail."""

from collections.abc import Iterator

from calopd.config import Config
from calopd.core.errors import ConfigError
from calopd.core.paper_results import STUDENT
from calopd.doctor.checks import require
from calopd.doctor.sampled_model import require_sampled_model
from calopd.evaluation.benchmarks import load_benchmark
from calopd.experiments.discrepancy import measured_config
from calopd.experiments.existing_run import check_existing
from calopd.experiments.job_execution import is_done, is_trained
from calopd.experiments.planned_runs import BaselineJob, ExperimentJob, ExperimentPlan, RunJob, StudyJob
from calopd.study.collection import contexts_of, study_facts
from calopd.study.shards import Study

MADE_LATER = ("ports", "recorded run")
"""Ports are chosen when a run starts, and a control follows a run of the same experiment."""


def require_experiment(plan: ExperimentPlan) -> None:
    """Raise the first error that a job which is not done would end with, as far as it is known now."""
    for run in plan.runs:
        check_existing(run)
    jobs = [job for job in plan.jobs if not is_done(plan, job)]
    _require_models(plan, jobs)
    for job in _distinct(jobs):
        try:
            _require_job(plan, job)
        except ConfigError as error:
            raise ConfigError(f"{job.name}: {error}") from None


def _distinct(jobs: list[ExperimentJob]) -> Iterator[ExperimentJob]:
    """One of the jobs that differ in name and seed only."""
    seen = set()
    for job in jobs:
        run = job.config.run.model_copy(update={"name": "", "seed": 0})
        key = (type(job), job.config.model_copy(update={"run": run}).to_toml())
        if isinstance(job, StudyJob) or key not in seen:
            seen.add(key)
            yield job


def _require_job(plan: ExperimentPlan, job: ExperimentJob) -> None:
    part = plan.experiment.discrepancy
    if isinstance(job, StudyJob):
        chosen = plan.experiment.studies[job.study].contexts
        facts = study_facts(job.config, contexts_of(job.config, chosen or None), job.recorded)
        Study(plan.files.study(job.study)).check(**facts)
        _require_study(job.config, chosen, samples=job.recorded is None)
    elif isinstance(job, RunJob) and not is_trained(job.config.run_dir):
        require(job.config, besides=MADE_LATER)
    elif part is not None and isinstance(job, BaselineJob) and job.role == STUDENT:
        _require_study(measured_config(job.config, job.config.student.path, part), part.probes, samples=True)


def _require_study(config: Config, chosen: str, *, samples: bool) -> None:
    placed = ("teacher", "rollout") if samples else ("teacher",)
    require(config, study=contexts_of(config, chosen or None), placed=placed)


def _require_models(plan: ExperimentPlan, jobs: list[ExperimentJob]) -> None:
    """Check the models that are evaluated; a trained one has the shape of its student."""
    part = plan.experiment.evaluation
    evaluated = [job for job in jobs if not isinstance(job, StudyJob)]
    if not part.benchmarks or not evaluated:
        return
    problems = [one for source in part.benchmarks for one in load_benchmark(source, part.problems).problems]
    named = ("evaluation.max_prompt_tokens", "evaluation.max_tokens")
    paths = {}
    for job in evaluated:
        teaches = isinstance(job, BaselineJob) and job.role != STUDENT
        path = job.config.teacher.path if teaches else job.config.student.path
        paths[path] = "teacher.path" if teaches else "student.path"
    for path, key in paths.items():
        require_sampled_model(key, path, part.sampling, part.max_prompt_tokens, problems, named=named)
