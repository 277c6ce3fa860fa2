"""The job of the sampling processes (model, problems, settings) and the samples that they write."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from calopd.core.errors import ConfigError
from calopd.core.options import PAPER_EVALUATION, Sampling
from calopd.core.types import Problem
from calopd.evaluation.benchmarks import Benchmark
from calopd.evaluation.layout import EvaluationDir
from calopd.rundir.files import read_lines, write_json

_FREE = ("label", "n", "in_flight", "tensor_parallel_size", "cpu_kv_cache_gib")
"""Settings that may change when an evaluation is resumed; all others determine the samples."""
START_OVER = "choose another --out, or start over with --overwrite"


@dataclass(frozen=True, slots=True)
class Settings:
    """Sampling settings of an evaluation; the defaults are those of the paper."""

    label: str
    path: str
    weights: str | None
    weights_sha256: str
    version: int | None
    n: int = 16
    seed: int = 0
    sampling: Sampling = PAPER_EVALUATION
    max_prompt_tokens: int = 2_048
    thinking: bool = True
    engine: str = "vllm"
    dtype: str = "float32"
    """The chosen one, never `auto`: samples of another machine may not be mixed with these."""
    in_flight: int = 256
    tensor_parallel_size: int = 1
    cpu_kv_cache_gib: int = 1

    def to_json(self) -> dict[str, Any]:
        """One flat mapping, with the sampling parameters among the others."""
        values = asdict(self)
        sampling = values.pop("sampling")
        return values | sampling

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        sampling = {field.name: values[field.name] for field in fields(Sampling)}
        rest = {name: value for name, value in values.items() if name not in sampling}
        return cls(**rest, sampling=Sampling(**sampling))


@dataclass(frozen=True, slots=True)
class Task:
    """One response to sample."""

    benchmark: str
    problem: Problem
    sample: int
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        return self.benchmark, self.problem.id, self.sample


@dataclass(frozen=True, slots=True)
class Job:
    settings: Settings
    benchmarks: list[Benchmark]

    def tasks(self) -> Iterator[Task]:
        """All tasks, ordered by sample number, so that an interrupted job covers as many problems as possible."""
        for sample in range(self.settings.n):
            for benchmark in self.benchmarks:
                for problem in benchmark.problems:
                    seed = sample_seed(self.settings.seed, benchmark.name, problem.id, sample)
                    yield Task(benchmark.name, problem, sample, seed)

    def save(self, directory: EvaluationDir, otherwise: str = START_OVER) -> None:
        """Write the job; raise ConfigError with the advice `otherwise` if there are samples of another evaluation."""
        file = directory.job
        if file.exists() and any(journal.stat().st_size for journal in directory.journals):
            self._check_same(json.loads(file.read_text(encoding="utf-8")), directory, otherwise)
        benchmarks = [
            {
                "name": b.name,
                "source": b.source,
                "sha256": b.sha256,
                "problems": [{"id": p.id, "problem": p.problem, "answer": p.answer} for p in b.problems],
            }
            for b in self.benchmarks
        ]
        write_json(file, {"settings": self.settings.to_json(), "benchmarks": benchmarks})

    def _check_same(self, saved: dict[str, Any], directory: EvaluationDir, otherwise: str) -> None:
        ours = self.settings.to_json()
        for name in (name for name in ours if name not in _FREE):
            if saved["settings"].get(name) != ours[name]:
                raise ConfigError(
                    f"{directory} contains samples with {name} = {saved['settings'].get(name)}, not {ours[name]}: "
                    f"{otherwise}"
                )
        known = {b["name"]: {p["id"]: (p["problem"], p["answer"]) for p in b["problems"]} for b in saved["benchmarks"]}
        for benchmark in self.benchmarks:
            old = known.get(benchmark.name, {})
            for problem in benchmark.problems:
                if old.get(problem.id, (problem.problem, problem.answer)) != (problem.problem, problem.answer):
                    raise ConfigError(
                        f"{directory} contains samples of another problem {problem.id!r} of {benchmark.name}: "
                        f"{otherwise}"
                    )


def load_job(directory: EvaluationDir) -> Job:
    saved = json.loads(directory.job.read_text(encoding="utf-8"))
    benchmarks = [
        Benchmark(b["name"], b["source"], tuple(Problem(p["id"], p["problem"], p["answer"]) for p in b["problems"]))
        for b in saved["benchmarks"]
    ]
    return Job(Settings.from_json(saved["settings"]), benchmarks)


def sample_seed(seed: int, benchmark: str, problem_id: str, sample: int) -> int:
    """Seed of one response, independent of the model, the order and the batch."""
    digest = hashlib.sha256(f"{seed}/{benchmark}/{problem_id}/{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def read_samples(directory: EvaluationDir) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Samples of all replicas by (benchmark, problem, sample); the first of duplicates is kept."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for file in directory.journals:
        for row in read_lines(file):
            found.setdefault((row["benchmark"], row["problem_id"], row["sample"]), row)
    return found
