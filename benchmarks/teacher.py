"""The teacher against common ways to score: python -m benchmarks.teacher   (or `make bench-teacher`)

Our service end to end (client, gRPC, torch engine; the vLLM engine beside it) on responses under three contexts,
against transformers one sequence at a time with full logits (naive), a padded batch, stock vLLM `prompt_logprobs` 16
and 0 on all sequences at once, and a lower bound (limit): the transformer without the LM head on the same tokens, plus
the LM head's matrix product on the response positions. Repetitions are interleaved. Figures are medians of ratios of
CPU seconds, with wall seconds in parentheses; above 1 = we are faster.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn
from rich.table import Table

from benchmarks.model_builders import qwen3_vocab, smollm2
from benchmarks.teacher_service import ROOT, Work, serving
from calopd.core.types import ScoreOptions

RESULTS = Path(__file__).parent / "results" / "teacher.json"
SHARED, RESPONSE = 120, (380, 460)
"""Tokens of the system turn and the problem, the common prefix of all contexts; range of tokens of a response."""
INTERVENTIONS = {"c0": 5, "eval+": 33, "eval-": 36}
MODELS = {"smollm2": (smollm2, 49_152, 2, 3), "qwen3_vocab": (qwen3_vocab, 151_936, 4, 5)}
"""Builder, vocabulary size, responses, repetitions."""
PEERS = {
    "naive": "transformers",
    "padded": "transformers",
    "limit": "transformers",
    "vllm_16": "vllm",
    "vllm_0": "vllm",
}
OURS = {"": ScoreOptions(), "with_top16_and_entropy": ScoreOptions(16, want_entropy=True)}


def draw_work(vocabulary: int, responses: int, contexts: dict[str, int] = INTERVENTIONS, seed: int = 0) -> Work:
    draw = np.random.default_rng(seed)
    work: Work = []
    for _ in range(responses):
        shared = draw.integers(0, vocabulary, SHARED)
        prompts = {
            name: np.concatenate((shared, draw.integers(0, vocabulary, own))).astype(np.int32)
            for name, own in contexts.items()
        }
        work.append((draw.integers(0, vocabulary, draw.integers(*RESPONSE), np.int32), prompts))
    return work


@contextmanager
def peer(path: Path, kind: str) -> Iterator[Any]:
    """Start the process of a peer; yields a function (way, work) -> seconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.teacher_peers", str(path), kind],
        cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    questions, answers = process.stdin, process.stdout
    assert questions is not None
    assert answers is not None
    try:
        assert answers.readline() == "ready\n", f"the {kind} peer did not start"

        def ask(way: str, work: Work) -> dict[str, float]:
            sequences = [(ids.tolist(), response.tolist()) for response, prompts in work for ids in prompts.values()]
            questions.write(json.dumps({"way": way, "sequences": sequences}) + "\n")
            questions.flush()
            return json.loads(answers.readline())

        yield ask
    finally:
        process.kill()
        process.wait()


def measure(path: Path, vocabulary: int, responses: int, repeats: int, progress: Progress) -> dict[str, Any]:
    work = draw_work(vocabulary, responses)
    spent: dict[str, list[dict[str, float]]] = {}
    with (
        serving(path) as service,
        serving(path, share_prefixes=False) as unshared,
        serving(path, engine='"vllm"') as inside_vllm,
        peer(path, "transformers") as transformers,
        peer(path, "vllm") as vllm,
    ):
        task = progress.add_task(path.name, total=(repeats + 1) * (len(PEERS) + len(OURS) + 2))
        for repeat in range(repeats + 1):
            found = {}
            for way, kind in PEERS.items():
                found[way] = (transformers if kind == "transformers" else vllm)(way, work)
                progress.advance(task)
            for name, options in OURS.items():
                found[name], scores = service.score(work, options)
                progress.advance(task)
            found["without_prefix_reuse"], _ = unshared.score(work)
            progress.advance(task)
            found["vllm_engine"], _ = inside_vllm.score(work)
            progress.advance(task)
            total = sum(float(s.logprobs.sum(dtype=np.float64)) for s in scores)
            tokens = sum(s.logprobs.size for s in scores)
            for way in ("naive", "padded", "vllm_16", "vllm_0"):
                off = abs(found[way]["checksum"] - total) / tokens
                assert off < 1e-4, f"{way} differs from ours by {off:.1e} nats per token: the comparison is invalid"
            if repeat:  # the first repetition is the warm-up
                for name, seconds in found.items():
                    spent.setdefault(name, []).append(seconds)
    result: dict[str, Any] = {"responses": responses, "contexts": len(INTERVENTIONS), "repetitions": repeats}
    for way in PEERS:
        result[f"vs_{way}"] = ratio(spent, way, "", "cpu")
        result[f"vs_{way}_wall"] = ratio(spent, way, "", "wall")
    result["vs_vllm_16_with_top16_and_entropy"] = ratio(spent, "vllm_16", "with_top16_and_entropy", "cpu")
    result["vs_vllm_16_of_our_vllm_engine"] = ratio(spent, "vllm_16", "vllm_engine", "cpu")
    result["vs_vllm_16_of_our_vllm_engine_wall"] = ratio(spent, "vllm_16", "vllm_engine", "wall")
    result["vs_limit_without_prefix_reuse"] = ratio(spent, "limit", "without_prefix_reuse", "cpu")
    result["seconds"] = {
        name or "ours": {k: round(statistics.median(s[k] for s in values), 3) for k in ("cpu", "wall")}
        for name, values in spent.items()
    }
    return result


def ratio(spent: dict[str, list[dict[str, float]]], way: str, ours: str, kind: str) -> float:
    pairs = zip(spent[way], spent[ours], strict=True)
    return round(statistics.median(theirs[kind] / own[kind] for theirs, own in pairs), 2)


def table(results: dict[str, Any]) -> Table:
    out = Table("against", *results, title="CPU seconds, peer / ours (wall): above 1 = we are faster")
    for way in PEERS:
        out.add_row(way, *(f"{r[f'vs_{way}']:.2f} ({r[f'vs_{way}_wall']:.2f})" for r in results.values()))
    for key in (
        "vs_vllm_16_with_top16_and_entropy",
        "vs_vllm_16_of_our_vllm_engine",
        "vs_vllm_16_of_our_vllm_engine_wall",
        "vs_limit_without_prefix_reuse",
    ):
        out.add_row(key.removeprefix("vs_").replace("_", " "), *(f"{r[key]:.2f}" for r in results.values()))
    return out


def main() -> None:
    chosen = sys.argv[1:] or list(MODELS)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with Progress(
        *Progress.get_default_columns()[:-1], TimeRemainingColumn(), console=Console(stderr=True)
    ) as progress:
        for name in chosen:
            build, vocabulary, responses, repeats = MODELS[name]
            results[name] = measure(build(), vocabulary, responses, repeats, progress)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    Console().print(table({name: results[name] for name in MODELS if name in results}))
    print(f"written to {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
