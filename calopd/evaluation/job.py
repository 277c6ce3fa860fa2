"""What is asked of the sampling processes: which model, which problems, how; and what they write down."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from calopd.core.errors import ConfigError
from calopd.core.types import Problem
from calopd.evaluation.benchmarks import Benchmark
from calopd.rundir.files import read_lines, write_json

FILE = "job.json"
_FREE = ("label", "n", "in_flight", "tensor_parallel_size", "cpu_kv_cache_gib")
"""What may change between two starts of one evaluation; the rest decides what is sampled."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is sampled; the defaults are the paper's evaluation."""

    label: str
    path: str
    weights: str | None
    weights_sha256: str
    version: int | None
    n: int = 16
    seed: int = 0
    temperature: float = 0.6
    top_p: float = 0.95
    max_tokens: int = 20_480
    max_prompt_tokens: int = 2_048
    thinking: bool = True
    engine: str = "vllm"
    dtype: str = "float32"
    in_flight: int = 256
    tensor_parallel_size: int = 1
    cpu_kv_cache_gib: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """One response to write."""

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
        """All responses, the first of every problem before the second of any: an interrupted job has seen them all."""
        for sample in range(self.settings.n):
            for benchmark in self.benchmarks:
                for problem in benchmark.problems:
                    seed = sample_seed(self.settings.seed, benchmark.name, problem.id, sample)
                    yield Task(benchmark.name, problem, sample, seed)

    def save(self, directory: Path) -> None:
        """Write job.json; refused where samples of another evaluation are there."""
        file = directory / FILE
        if file.exists():
            self._check_same(json.loads(file.read_text(encoding="utf-8")), directory)
        benchmarks = [
            {
                "name": b.name,
                "source": b.source,
                "sha256": b.sha256,
                "problems": [{"id": p.id, "problem": p.problem, "answer": p.answer} for p in b.problems],
            }
            for b in self.benchmarks
        ]
        write_json(file, {"settings": asdict(self.settings), "benchmarks": benchmarks})

    def _check_same(self, saved: dict[str, Any], directory: Path) -> None:
        ours = asdict(self.settings)
        for name in (f.name for f in fields(Settings) if f.name not in _FREE):
            if saved["settings"].get(name) != ours[name]:
                raise ConfigError(
                    f"{directory} holds samples with {name} = {saved['settings'].get(name)}, not {ours[name]}: "
                    "choose another --out, or start anew with --overwrite"
                )
        known = {b["name"]: {p["id"]: (p["problem"], p["answer"]) for p in b["problems"]} for b in saved["benchmarks"]}
        for benchmark in self.benchmarks:
            old = known.get(benchmark.name, {})
            for problem in benchmark.problems:
                if old.get(problem.id, (problem.problem, problem.answer)) != (problem.problem, problem.answer):
                    raise ConfigError(
                        f"{directory} holds samples of another problem {problem.id!r} of {benchmark.name}: "
                        "choose another --out, or start anew with --overwrite"
                    )


def load_job(directory: Path) -> Job:
    saved = json.loads((directory / FILE).read_text(encoding="utf-8"))
    benchmarks = [
        Benchmark(b["name"], b["source"], tuple(Problem(p["id"], p["problem"], p["answer"]) for p in b["problems"]))
        for b in saved["benchmarks"]
    ]
    return Job(Settings(**saved["settings"]), benchmarks)


def sample_seed(seed: int, benchmark: str, problem_id: str, sample: int) -> int:
    """The noise of one response: whatever the model, the order and the company, it is the same."""
    digest = hashlib.sha256(f"{seed}/{benchmark}/{problem_id}/{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def journal_file(directory: Path, replica: int) -> Path:
    return directory / "samples" / f"{replica}.jsonl"


def read_samples(directory: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """All samples on the disk, of whichever replica, by (benchmark, problem, sample); the first of two counts."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for file in sorted((directory / "samples").glob("*.jsonl")):
        for row in read_lines(file):
            found.setdefault((row["benchmark"], row["problem_id"], row["sample"]), row)
    return found
