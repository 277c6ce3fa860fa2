"""Scores of an evaluated model, problem by problem: what tables and intervals are computed from."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from calopd.evaluation.benchmarks import benchmark_name, load_benchmark
from calopd.evaluation.results import MEAN, Results
from calopd.experiments.experiment_file import EvaluationPart
from calopd.experiments.planned_runs import BaselineJob, ExperimentPlan, RunJob, evaluated_model
from calopd.rundir.files import write_json


@dataclass(frozen=True, slots=True)
class ModelScores:
    """results.json without the samples, which may have gigabytes."""

    scores: dict[str, list[float]]
    """Benchmark -> mean score of every problem."""
    sha256: dict[str, str]
    """Benchmark -> digest of its problems."""
    length: dict[str, float]
    truncated: dict[str, float]
    settings: dict[str, Any]

    @property
    def benchmarks(self) -> list[str]:
        return list(self.scores)

    def accuracy(self, benchmark: str) -> float:
        """Avg@n of a benchmark, or the unweighted mean of all."""
        names = self.benchmarks if benchmark == MEAN else [benchmark]
        return float(np.mean([np.mean(self.scores[name]) for name in names]))


def evaluation_settings(part: EvaluationPart) -> dict[str, Any]:
    """The settings of an evaluation that the file determines: scores with others are not those of the experiment."""
    return {
        "n": part.n,
        "seed": part.seed,
        "sampling": part.sampling,
        "max_prompt_tokens": part.max_prompt_tokens,
        "engine": part.engine,
    }


def save_scores(file: Path, results: Results, part: EvaluationPart, model: str) -> None:
    """Keep the scores of an evaluation; `model` is what the experiment calls the model."""
    rows = {row.name: row for row in results.summaries()}
    scores = ModelScores(
        scores={name: results.scores(name) for name in results.names},
        sha256={name: results.benchmark(name)["sha256"] for name in results.names},
        length={name: rows[name].length for name in results.names},
        truncated={name: rows[name].truncated for name in results.names},
        settings={**results.settings, "problems": part.problems, "model": model},
    )
    write_json(file, asdict(scores))


def read_scores(plan: ExperimentPlan, job: RunJob | BaselineJob) -> ModelScores | None:
    """The scores of a model, or None if its evaluation with the settings of the file is not complete."""
    file, part = plan.files.scores(job.name), plan.experiment.evaluation
    if not file.exists():
        return None
    scores = ModelScores(**json.loads(file.read_text(encoding="utf-8")))
    wanted = evaluation_settings(part)
    wanted |= {**asdict(wanted.pop("sampling")), "problems": part.problems}
    if isinstance(job, BaselineJob):  # a run's directory is checked with its own settings
        wanted["model"] = evaluated_model(job)
    same = all(scores.settings.get(key) == value for key, value in wanted.items())
    return scores if same and _same_problems(scores.sha256, part) else None


def _same_problems(found: Mapping[str, str], part: EvaluationPart) -> bool:
    wanted = dict(_digest(source, part.problems) for source in part.benchmarks)
    return found.keys() == wanted.keys() and all(sha in (None, found[name]) for name, sha in wanted.items())


def _digest(source: str, limit: int | None) -> tuple[str, str | None]:
    """Name and digest of a benchmark; None as the digest of one that is on the hub, where it does not change."""
    path = Path(source)
    if not path.is_file():
        return benchmark_name(source), None
    state = path.stat()
    return benchmark_name(source), _file_digest(source, limit, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)
def _file_digest(source: str, limit: int | None, changed: int, size: int) -> str:
    """A page asks for every model; the file is read again after a change only."""
    return load_benchmark(source, limit).sha256
