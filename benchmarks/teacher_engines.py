"""The torch and the vLLM engine on the same work, on this machine: which one is faster for your teacher?

python -m benchmarks.teacher_engines CONFIG.toml|MODEL   (or `make bench-teacher-engines TEACHER=...`)

A configuration gives the settings of [teacher]; for a model they have their defaults. Each engine runs in a process of
its own, one after the other. The work: responses under three contexts that begin alike, of random tokens.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calopd.config import load_config
from calopd.config.sections import TeacherSection
from calopd.core.errors import CalopdError
from calopd.models.devices import choose_device, dtype_name
from services.teacher_scorer.engines import ENGINES, build_engine
from services.teacher_scorer.engines.scoring_engine import ScoringEngine, SequenceToScore

RESULTS = Path(__file__).parent / "results" / "teacher_engines.json"
MARK = "RESULT "
SHARED = 0.8
"""Share of the prompt that the contexts of a problem have in common."""


@dataclass(frozen=True, slots=True)
class WorkSize:
    responses: int
    prompt_tokens: int
    response_tokens: int
    contexts: int = 3

    @classmethod
    def parsed(cls, arguments: argparse.Namespace) -> "WorkSize":
        on_gpu = choose_device("auto").type == "cuda"
        responses, prompt, response = (16, 512, 4_096) if on_gpu else (8, 64, 128)
        return cls(
            arguments.responses or responses,
            arguments.prompt_tokens or prompt,
            arguments.response_tokens or response,
        )


def draw_sequences(size: WorkSize, vocabulary: int, longest: int) -> list[SequenceToScore]:
    """Responses of half to one and a half times the given length, each under all contexts."""
    draw = np.random.default_rng(0)
    found = []
    for _ in range(size.responses):
        shared = draw.integers(3, vocabulary, int(SHARED * size.prompt_tokens), np.int32)
        length = int(draw.uniform(0.5, 1.5) * size.response_tokens)
        response = draw.integers(3, vocabulary, max(1, min(length, longest - size.prompt_tokens - 1)), np.int32)
        for _ in range(size.contexts):
            own = draw.integers(3, vocabulary, max(1, size.prompt_tokens - len(shared)), np.int32)
            found.append(SequenceToScore(np.concatenate((shared, own)), response))
    return found


def batches(sequences: list[SequenceToScore], batch_tokens: int) -> list[list[SequenceToScore]]:
    """Consecutive sequences of at most `batch_tokens` together, as the scheduler forms them."""
    found: list[list[SequenceToScore]] = [[]]
    for sequence in sequences:
        if found[-1] and sum(s.tokens for s in found[-1]) + sequence.tokens > batch_tokens:
            found.append([])
        found[-1].append(sequence)
    return found


def measure(engine: ScoringEngine, teacher: TeacherSection, size: WorkSize, repeats: int) -> dict[str, Any]:
    """Seconds of the whole work, after one unmeasured pass, and the scores of the first response."""
    sequences = draw_sequences(size, engine.vocabulary_size, min(teacher.max_tokens, engine.max_positions))
    work = batches(sequences, teacher.batch_tokens)
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        scores = [own for batch in work for own in engine.score(batch).scores]
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    tokens = sum(sequence.tokens for sequence in sequences)
    return {
        "engine": engine.name,
        "dtype": dtype_name(engine.dtype),
        "seconds": round(median, 3),
        "tokens_per_second": round(tokens / median),
        "response_tokens_per_second": round(sum(len(s.response_ids) for s in sequences) / median),
        "batches": len(work),
        "tokens": tokens,
        "scores": [round(float(value), 6) for value in scores[0].logprobs[:64]],
    }


def teacher_of(source: str) -> TeacherSection:
    if source.endswith(".toml"):
        return load_config(Path(source)).teacher
    return TeacherSection(path=source)


def run_engine(arguments: argparse.Namespace) -> None:
    """In a process of its own: measure one engine and print the result."""
    try:
        settings = teacher_of(arguments.teacher).model_dump() | {"engine": arguments.engine}
        teacher = TeacherSection.model_validate(settings)
        result = measure(build_engine(teacher), teacher, WorkSize.parsed(arguments), arguments.repeats)
    except (CalopdError, ImportError, ValueError) as error:
        result = {"error": str(error).splitlines()[0]}
    print(MARK + json.dumps(result), flush=True)


def measured_apart(engine: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.teacher_engines", *sys.argv[1:], "--engine", engine]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        return {"error": f"exit code {done.returncode}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"}
    return dict(json.loads(lines[-1].removeprefix(MARK)))


def verdict(found: dict[str, dict[str, Any]]) -> str:
    """The faster engine, and whether both computed the same."""
    speeds = {name: result["tokens_per_second"] for name, result in found.items() if "error" not in result}
    if not speeds:
        return "No engine can run this teacher here."
    best = max(speeds, key=lambda name: speeds[name])
    if len(speeds) == 1:
        return f'Only one engine can run this teacher here: teacher.engine = "{best}".'
    slower = min(speeds.values())
    torch, vllm = (np.asarray(found[name]["scores"]) for name in ("torch", "vllm"))
    return (
        f'{best} is {speeds[best] / slower:.2f} times as fast: teacher.engine = "{best}". '
        f"Scores of both differ by {np.median(np.abs(torch - vllm)):.2g} nats (median)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.teacher_engines", description=__doc__)
    parser.add_argument("teacher", help="a run's TOML, or a model directory or hub id")
    parser.add_argument("--responses", type=int, default=0, help="default: 8 on a CPU, 16 on a GPU")
    parser.add_argument("--prompt-tokens", type=int, default=0, help="default: 64 on a CPU, 512 on a GPU")
    parser.add_argument("--response-tokens", type=int, default=0, help="mean; default: 128 on a CPU, 4096 on a GPU")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        run_engine(arguments)
        return
    size = WorkSize.parsed(arguments)
    print(
        f"{size.responses} responses of about {size.response_tokens} tokens under {size.contexts} contexts of "
        f"{size.prompt_tokens} tokens, on {choose_device('auto')}, median of {arguments.repeats}"
    )
    found = {}
    for name in ENGINES:
        found[name] = result = measured_apart(name)
        shown = (
            f"cannot run: {result['error']}"
            if "error" in result
            else (
                f"{result['tokens_per_second']:>9,} tokens/s ({result['response_tokens_per_second']:,} of responses), "
                f"{result['seconds']:.2f} s in {result['batches']} batches, {result['dtype']}, {result['engine']}"
            )
        )
        print(f"{name:6} {shown}", flush=True)
    print(verdict(found))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"work": asdict(size), "engines": found}, indent=2) + "\n")


if __name__ == "__main__":
    from calopd.local.entry_point import guarded

    guarded(main)
