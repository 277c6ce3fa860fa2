"""Benchmarks: the six of the paper, downloaded by name, or any JSONL file of {id, problem, answer}."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from calopd.config.nearest import nearest
from calopd.core.errors import ConfigError
from calopd.core.types import Problem
from calopd.data.prepare import read_hub
from calopd.data.problems import load_problems
from calopd.evaluation.benchmark_table import HUB


@dataclass(frozen=True, slots=True)
class Benchmark:
    name: str
    source: str
    problems: tuple[Problem, ...]

    @property
    def sha256(self) -> str:
        """Digest of ids, problems and answers; equal for results on the same benchmark."""
        rows = [[p.id, p.problem, p.answer] for p in self.problems]
        return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()


def load_benchmark(source: str, limit: int | None = None) -> Benchmark:
    """Load a benchmark by its name or from a file; `limit` keeps only the first problems."""
    path = Path(source)
    if path.is_file():
        problems = load_problems(path)
    elif source in HUB:
        problems = _download(source, HUB[source][1])
    elif path.suffix or "/" in source:
        raise ConfigError(f"no benchmark at {source}: expected a JSONL file with one {{id, problem, answer}} per line")
    else:
        raise ConfigError(
            f"unknown benchmark {source!r}{nearest(source, HUB)}: expected one of {', '.join(HUB)}, or a JSONL file "
            "with one {id, problem, answer} per line"
        )
    return Benchmark(benchmark_name(source), source, tuple(problems[:limit]))


def benchmark_name(source: str) -> str:
    """The paper's name of one of its benchmarks, from the hub or in a file with its name; else the file's name."""
    name = Path(source).stem
    return HUB[name][0] if name in HUB else name


def _download(source: str, repository: str) -> list[Problem]:
    try:
        rows = list(read_hub(repository))
    except ConfigError as error:
        raise ConfigError(
            f"{error}. If you are offline, give a file instead: --benchmark {source}.jsonl, with one "
            '{"id": …, "problem": …, "answer": …} per line'
        ) from None
    return [Problem(f"{source}-{number:03d}", row.problem, row.answer) for number, row in enumerate(rows)]


def load_benchmarks(sources: str, limit: int | None = None) -> list[Benchmark]:
    """Load the benchmarks of a comma-separated list; duplicate names are an error."""
    found: dict[str, Benchmark] = {}
    for source in filter(None, (part.strip() for part in sources.split(","))):
        benchmark = load_benchmark(source, limit)
        if benchmark.name in found:
            raise ConfigError(f"two benchmarks are named {benchmark.name!r}: rename one of the files")
        found[benchmark.name] = benchmark
    return list(found.values())
