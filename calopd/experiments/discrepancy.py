"""Discrepancy between teacher and student on held-out problems: the student's own responses, scored by the teacher."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from calopd.config import Config
from calopd.core.calibration import calibrated_advantage, tsd_region
from calopd.experiments.experiment_file import DiscrepancyPart
from calopd.experiments.planned_runs import BaselineJob, ExperimentPlan, RunJob
from calopd.rundir.digests import sha256
from calopd.rundir.files import read_json, write_json
from calopd.study.collection import Goal, collect
from calopd.study.shards import Study

SHARD_TOKENS, FLUSH_SECONDS = 2**20, 60.0
RELAXATION = 5.0


def measure_discrepancy(config: Config, student: str, part: DiscrepancyPart, directory: Path) -> None:
    """Sample and score the responses of the model at `student`, then write discrepancy.json; repeated, it resumes."""
    goal = Goal(None, part.rollouts, SHARD_TOKENS, FLUSH_SECONDS)
    study, settings, wanted = directory / "study", directory / "settings.json", _settings(part, config)
    if settings.exists() and read_json(settings) != wanted:
        shutil.rmtree(directory)
    write_json(settings, wanted)
    collect(measured_config(config, student, part), study, goal, chosen=part.probes, recorded=None)
    write_json(result_file(directory), {"settings": wanted, **summarise_discrepancy(Study(study))})


def _settings(part: DiscrepancyPart, config: Config) -> dict[str, Any]:
    """All that a discrepancy depends on, besides the weights of a run, which has its directory to itself."""
    problems = part.problems
    return {
        **part.model_dump(mode="json"),
        "sha256": sha256(problems) if problems.is_file() else None,
        "student": config.student.path,
        "teacher": config.teacher.path,
    }


def measured_config(config: Config, student: str, part: DiscrepancyPart) -> Config:
    """The configuration of the study that the model at `student` is measured with."""
    return config.model_copy(
        update={
            "student": config.student.model_copy(update={"path": student}),
            "data": config.data.model_copy(update={"train": part.problems, "heldout": None}),
            "evaluation": config.evaluation.model_copy(update={"problems": 0}),
            "run": config.run.model_copy(update={"seed": 0}),  # the same problems and random numbers for all models
        }
    )


def summarise_discrepancy(study: Study) -> dict[str, float]:
    """Means over tokens, and the standard error of |lT - lS| over responses."""
    import torch

    sums = dict.fromkeys(("tokens", "absolute", "difference", "retained"), 0.0)
    means = []
    for shard, start, rollout in study.rollouts():
        scored = study.read(shard, start, rollout)
        teacher, student = (torch.from_numpy(np.array(a)) for a in (scored.teacher_logprobs, scored.student_logprobs))
        raw = teacher[0] - student
        kept = calibrated_advantage(tsd_region(teacher[0], teacher[1:], RELAXATION), student)
        sums["tokens"] += len(raw)
        sums["absolute"] += raw.abs().double().sum().item()
        sums["difference"] -= raw.double().sum().item()
        sums["retained"] += kept.abs().double().sum().item()
        means.append(raw.abs().double().mean().item())
    tokens = sums["tokens"]
    return {
        "tokens": tokens,
        "responses": len(means),
        "mean_length": tokens / len(means),
        "mean_absolute": sums["absolute"] / tokens,
        "standard_error": float(np.std(means, ddof=1) / np.sqrt(len(means))) if len(means) > 1 else float("nan"),
        "mean_log_ratio": sums["difference"] / tokens,
        "retained": sums["retained"] / sums["absolute"] if sums["absolute"] else 1.0,
    }


def result_file(directory: Path) -> Path:
    return directory / "discrepancy.json"


def read_discrepancy(plan: ExperimentPlan, job: RunJob | BaselineJob) -> dict[str, Any] | None:
    """The discrepancy of a model, or None if it was not measured with the settings of the file."""
    part = plan.experiment.discrepancy
    values: dict[str, Any] | None = read_json(result_file(plan.files.discrepancy(job.name)))
    if part is None or values is None:
        return None
    return values if values.pop("settings", None) == _settings(part, job.config) else None
