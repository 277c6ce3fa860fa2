"""results.json: all samples of an evaluation and their summaries."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calopd.core.errors import ConfigError
from calopd.core.statistics import Estimate, average, majority_score
from calopd.data.answers import answer_key
from calopd.evaluation.job import Job, read_samples
from calopd.evaluation.layout import EvaluationDir
from calopd.rundir.files import write_json

FORMAT = 1
MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Summary:
    """A row of the table: a benchmark, or the unweighted mean over all of them."""

    name: str
    problems: int
    n: int
    avg: Estimate
    pass_at_n: float
    majority_at_n: float
    length: float
    truncated: float
    after_think: float
    """Share of responses with an answer after `</think>`."""


@dataclass(frozen=True, slots=True)
class Results:
    """The contents of results.json."""

    label: str
    settings: dict[str, Any]
    benchmarks: list[dict[str, Any]]

    @property
    def names(self) -> list[str]:
        return [b["name"] for b in self.benchmarks]

    @property
    def n(self) -> int:
        return int(self.settings["n"])

    def benchmark(self, name: str) -> dict[str, Any]:
        return next(b for b in self.benchmarks if b["name"] == name)

    def samples(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Problem id -> samples, in the order of the benchmark."""
        benchmark = self.benchmark(name)
        grouped: dict[str, list[dict[str, Any]]] = {p["id"]: [] for p in benchmark["problems"]}
        for sample in benchmark["samples"]:
            grouped[sample["problem_id"]].append(sample)
        return grouped

    def scores(self, name: str) -> list[float]:
        """Mean accuracy of every problem, in the order of the benchmark."""
        return [float(np.mean([s["correct"] for s in samples])) for samples in self.samples(name).values()]

    def summaries(self) -> list[Summary]:
        """One row per benchmark and, if there are several, a row for their mean."""
        rows = [self._summary(name) for name in self.names]
        return rows if len(rows) == 1 else [*rows, self._mean(rows)]

    def _summary(self, name: str) -> Summary:
        grouped = list(self.samples(name).values())
        flat = [sample for samples in grouped for sample in samples]

        def share(key: str) -> float:
            return float(np.mean([sample[key] for sample in flat]))

        votes = [
            majority_score(
                [None if s["answer"] is None else answer_key(s["answer"]) for s in samples],
                [s["correct"] for s in samples],
            )
            for samples in grouped
        ]
        return Summary(
            name=name,
            problems=len(grouped),
            n=self.n,
            avg=average({name: self.scores(name)}),
            pass_at_n=float(np.mean([any(s["correct"] for s in samples) for samples in grouped])),
            majority_at_n=float(np.mean(votes)),
            length=share("length"),
            truncated=share("truncated"),
            after_think=share("after_think"),
        )

    def _mean(self, rows: Sequence[Summary]) -> Summary:
        def mean(key: str) -> float:
            return float(np.mean([getattr(row, key) for row in rows]))

        return Summary(
            name=MEAN,
            problems=sum(row.problems for row in rows),
            n=self.n,
            avg=average({name: self.scores(name) for name in self.names}),
            **{key: mean(key) for key in ("pass_at_n", "majority_at_n", "length", "truncated", "after_think")},
        )


_SAMPLE = (
    "problem_id", "sample", "seed", "correct", "answer", "after_think", "length", "truncated", "seconds", "text",
    "response_ids",
)  # fmt: skip


def write_results(job: Job, directory: EvaluationDir) -> Results:
    """Collect the samples of all replicas in the order of the job and write results.json atomically."""
    found = read_samples(directory)
    benchmarks: dict[str, dict[str, Any]] = {
        b.name: {
            "name": b.name,
            "source": b.source,
            "sha256": b.sha256,
            "problems": [{"id": p.id, "problem": p.problem, "answer": p.answer} for p in b.problems],
            "samples": [],
        }
        for b in job.benchmarks
    }
    samplers = set()
    for benchmark in job.benchmarks:
        for problem in benchmark.problems:
            for number in range(job.settings.n):
                row = found[benchmark.name, problem.id, number]
                samplers.add(row["sampler"])
                benchmarks[benchmark.name]["samples"].append({key: row[key] for key in _SAMPLE})
    settings = {key: value for key, value in job.settings.to_json().items() if key != "label"}
    settings["samplers"] = sorted(samplers)
    results = Results(job.settings.label, settings, list(benchmarks.values()))
    summaries = [asdict(row) for row in results.summaries()]
    value = {"format": FORMAT, "label": results.label, "settings": settings, "summary": summaries}
    write_json(directory.results, {**value, "benchmarks": results.benchmarks})
    return results


def read_results(path: Path) -> Results:
    """Read results.json, given its path or its directory."""
    file = EvaluationDir(path).results if path.is_dir() else path
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        if saved["format"] != FORMAT:
            raise ConfigError(f"{file} has format {saved['format']}, expected {FORMAT}: run the evaluation again")
        return Results(saved["label"], saved["settings"], saved["benchmarks"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"no results at {path}: expected a results.json written by `calopd eval`") from None
