"""Scores of an evaluated model, problem by problem: what tables and intervals are computed from."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calopd.evaluation.results import MEAN, Results
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


def save_scores(file: Path, results: Results) -> None:
    rows = {row.name: row for row in results.summaries()}
    scores = ModelScores(
        scores={name: results.scores(name) for name in results.names},
        sha256={name: results.benchmark(name)["sha256"] for name in results.names},
        length={name: rows[name].length for name in results.names},
        truncated={name: rows[name].truncated for name in results.names},
        settings=results.settings,
    )
    write_json(file, asdict(scores))


def read_scores(file: Path) -> ModelScores | None:
    """The scores, or None if the evaluation is not complete."""
    if not file.exists():
        return None
    return ModelScores(**json.loads(file.read_text(encoding="utf-8")))
