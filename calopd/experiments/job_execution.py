"""One job of an experiment: train, evaluate, collect. Every part resumes where it was stopped."""

import json
import shutil
from typing import Any

from rich.console import Console

from calopd.config import Config
from calopd.config.placement import Group
from calopd.config.ports import chosen_ports
from calopd.core.paper_results import STUDENT, TEACHER
from calopd.evaluation.benchmarks import load_benchmark
from calopd.evaluation.evaluated_models import resolve
from calopd.evaluation.job import Job, Settings
from calopd.evaluation.layout import EvaluationDir
from calopd.evaluation.model_weights import local_path, weights_digest
from calopd.evaluation.run_jobs import run_job
from calopd.experiments.discrepancy import measure_discrepancy, read_discrepancy
from calopd.experiments.model_scores import evaluation_settings, read_scores, save_scores
from calopd.experiments.planned_runs import (
    BaselineJob,
    ExperimentJob,
    ExperimentPlan,
    RunJob,
    StudyJob,
    evaluated_model,
)
from calopd.local.training import run as train
from calopd.models.devices import chosen_dtype
from calopd.rundir.files import read_json, write_json
from calopd.rundir.layout import RunDir
from calopd.study.analyze import analyze
from calopd.study.collection import NOISE_ROLLOUTS, Goal, collect, contexts_of, study_facts
from calopd.study.comparison_page import write_comparison
from calopd.study.layout import StudyDir
from calopd.study.study_page import write_page

SHARD_TOKENS, FLUSH_SECONDS = 2**20, 60.0


def is_trained(run_dir: RunDir) -> bool:
    """Whether a run has ended; its summary is written last."""
    return run_dir.summary.is_file() and (run_dir.model / "config.json").is_file()


def is_done(plan: ExperimentPlan, job: ExperimentJob) -> bool:
    if isinstance(job, StudyJob):
        files = StudyDir(plan.files.study(job.study))
        return files.page.exists() and read_json(files.experiment) == _study_settings(plan, job)
    if isinstance(job, RunJob) and not is_trained(job.config.run_dir):
        return False
    evaluated = not plan.experiment.evaluation.benchmarks or read_scores(plan, job) is not None
    return evaluated and (not _measures(plan, job) or read_discrepancy(plan, job) is not None)


def _measures(plan: ExperimentPlan, job: RunJob | BaselineJob) -> bool:
    """Whether the discrepancy to the teacher is measured; of the teacher it is not."""
    return plan.experiment.discrepancy is not None and (isinstance(job, RunJob) or job.role == STUDENT)


def do_job(plan: ExperimentPlan, job: ExperimentJob, console: Console) -> None:
    """Do what is left of a job."""
    if isinstance(job, StudyJob):
        _study(plan, job)
        return
    if isinstance(job, RunJob) and not is_trained(job.config.run_dir):
        _forget_results(plan, job)
        _train(job.config)
    if isinstance(job, RunJob) and not plan.experiment.keep_checkpoints:
        # Before the evaluation: a job that is killed meanwhile is repeated from here.
        _remove_state(job.config)
    if plan.experiment.evaluation.benchmarks and read_scores(plan, job) is None:
        _evaluate(plan, job, console)
    part = plan.experiment.discrepancy
    if part is not None and _measures(plan, job) and read_discrepancy(plan, job) is None:
        model = str(job.config.run_dir.model) if isinstance(job, RunJob) else job.config.student.path
        measure_discrepancy(job.config, model, part, plan.files.discrepancy(job.name))


def _train(config: Config) -> None:
    started = config.run_dir.is_run and config.run_dir.config.exists()
    train(config, resume=started, overwrite=False, chosen_ports=chosen_ports(config))


def _forget_results(plan: ExperimentPlan, job: RunJob) -> None:
    """Remove the results of an earlier run with this name: its directory was removed to train it again."""
    plan.files.scores(job.name).unlink(missing_ok=True)
    for folder in (plan.files.evaluation(job.name), plan.files.discrepancy(job.name)):
        shutil.rmtree(folder, ignore_errors=True)


def _evaluate(plan: ExperimentPlan, job: RunJob | BaselineJob, console: Console) -> None:
    part, model = plan.experiment.evaluation, resolve(f"{job.name}={evaluated_model(job)}")
    settings = Settings(
        label=job.name,
        path=local_path(model.path),
        weights=str(model.weights) if model.weights else None,
        weights_sha256=weights_digest(model),
        version=model.version,
        **evaluation_settings(part),
        dtype=chosen_dtype("auto"),
        in_flight=part.in_flight,
        tensor_parallel_size=_split_size(job),
    )
    evaluation = Job(settings, [load_benchmark(source, part.problems) for source in part.benchmarks])
    directory = EvaluationDir(plan.files.evaluation(job.name))
    evaluation.save(directory, otherwise=f"set another `dir` in the experiment, or remove {directory}")
    results = run_job(evaluation, directory, _replicas(job), console)
    save_scores(plan.files.scores(job.name), results, part, evaluated_model(job))


def _split_size(job: RunJob | BaselineJob) -> int:
    """GPUs that the evaluated model is split over, as in its role."""
    is_teacher = isinstance(job, BaselineJob) and job.role == TEACHER
    return (job.config.teacher if is_teacher else job.config.rollout).tensor_parallel_size


def _replicas(job: RunJob | BaselineJob) -> list[Group]:
    """Sampling processes on all GPUs that the run uses, as far as they divide; one unplaced process without GPUs."""
    gpus, each = job.config.placement.gpus, _split_size(job)
    return [gpus[start : start + each] for start in range(0, len(gpus) - each + 1, each)] or [()]


def _study(plan: ExperimentPlan, job: StudyJob) -> None:
    part, directory = plan.experiment.studies[job.study], plan.files.study(job.study)
    goal = Goal(part.tokens, part.rollouts, SHARD_TOKENS, FLUSH_SECONDS, NOISE_ROLLOUTS)
    collect(job.config, directory, goal, chosen=part.contexts or None, recorded=job.recorded)
    analyze(directory)
    if job.recorded is not None:
        write_comparison(job.recorded, directory, (), StudyDir(directory).comparison)
    write_page(directory, None, chosen=[], count=24)
    write_json(StudyDir(directory).experiment, _study_settings(plan, job))


def _study_settings(plan: ExperimentPlan, job: StudyJob) -> dict[str, Any]:
    """A study with other ones has other results: it is collected further, or refused."""
    part = plan.experiment.studies[job.study]
    facts = study_facts(job.config, contexts_of(job.config, part.contexts or None), job.recorded)
    return {**facts, "tokens": part.tokens, "rollouts": part.rollouts}


def _remove_state(config: Config) -> None:
    """Remove what only an unfinished run needs; metrics, report and model stay."""
    for folder in (config.run_dir.checkpoints, config.policies, config.run_dir.redis):
        shutil.rmtree(folder, ignore_errors=True)


def final_retained(run_dir: RunDir) -> float | None:
    """Mean retained ratio over the steps of a finished run."""
    if not run_dir.summary.exists():
        return None
    value: float = json.loads(run_dir.summary.read_text(encoding="utf-8"))["retained_ratio"]
    return value
