"""Discrepancy between teacher and student on held-out problems: the student's own responses, scored by the teacher."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from calopd.config import Config
from calopd.core.calibration import calibrated_advantage, tsd_region
from calopd.experiments.experiment_file import DiscrepancyPart
from calopd.experiments.planned_runs import ExperimentPlan
from calopd.rundir.files import write_json
from calopd.study.collection import Goal, collect
from calopd.study.shards import Study

SHARD_TOKENS, FLUSH_SECONDS = 2**20, 60.0
RELAXATION = 5.0


def measure_discrepancy(config: Config, student: str, part: DiscrepancyPart, directory: Path) -> None:
    """Sample and score the responses of the model at `student`, then write discrepancy.json; repeated, it resumes."""
    goal = Goal(None, part.rollouts, SHARD_TOKENS, FLUSH_SECONDS)
    study, settings = directory / "study", directory / "settings.json"
    if settings.exists() and json.loads(settings.read_text(encoding="utf-8")) != _settings(part):
        shutil.rmtree(directory)
    write_json(settings, _settings(part))
    collect(measured_config(config, student, part), study, goal, chosen=part.probes, recorded=None)
    write_json(result_file(directory), {"settings": _settings(part), **summarise_discrepancy(Study(study))})


def _settings(part: DiscrepancyPart) -> dict[str, Any]:
    settings: dict[str, Any] = part.model_dump(mode="json")
    return settings


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


def read_discrepancy(plan: ExperimentPlan, name: str) -> dict[str, Any] | None:
    """The discrepancy of a model, or None if it was not measured with the settings of the file."""
    file, part = result_file(plan.files.discrepancy(name)), plan.experiment.discrepancy
    if part is None or not file.exists():
        return None
    values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return values if values.pop("settings", None) == _settings(part) else None
