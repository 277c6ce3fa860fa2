"""A learner step against TRL's DistillationTrainer, and its LM head against full logits.

python -m benchmarks.learner [head] [trl]   (or `make bench-learner`): medians of ratios of CPU seconds (wall seconds
beside them) of interleaved repetitions in one run; above 1 = we are faster.

- head: forward, backward and AdamW of the LM head, against hidden @ W^T -> log_softmax -> gather -> backward; and the
  peak of the resident memory above that of hidden states, weight and optimizer state, with the buffer that the head
  keeps between steps.
- trl: the teacher scores a batch, the learner makes an optimizer step with it. TRL does the same on the same model and
  tokens, without generation; it is installed into build/trl, beside the project. By default its trainer recomputes
  activations; called step by step, as here, it does not, and neither do we.
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

from benchmarks.model_builders import smollm2
from calopd.planning.lengths import draw_lengths

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "learner.json"
TRL, TRL_FILES = "trl==1.16.0", ROOT / "build" / "trl"
TRL_NEEDS = ("datasets==5.2.0", "multiprocess", "pandas", "xxhash", "dill", "fsspec", "pytz", "tzdata", "six",
             "python-dateutil")  # fmt: skip
HEADS = {"49k": (49_152, 576, (512, 2_048)), "152k": (151_936, 128, (512, 2_048))}
"""Vocabulary size, hidden size, numbers of tokens."""
PEAKS = {"peak_mib_512": 512, "peak_mib_8192": 8_192}
BATCHES = {
    "": [max(16, length // 100) for length in draw_lengths(4, seed=3)],
    "_equal_lengths": [96, 96, 96, 96],
}
"""Response tokens: as those of the paper differ, divided by 100; and all alike, which no real batch is."""
PROMPT, VOCABULARY = 60, 49_152
INTERVENTIONS = {"c0": 5, "eval+": 33, "eval-": 36}
REPEATS = 2
WARM_UPS, STEPS = 2, 4
"""Rounds of the comparison with TRL."""


def draw_batch(lengths: list[int]) -> list[dict[str, Any]]:
    """Random responses with a prompt per context; the contexts share their beginning."""
    draw = np.random.default_rng(0)
    batch = []
    for length in lengths:
        shared = draw.integers(0, VOCABULARY, PROMPT)
        prompts = {name: [*shared, *draw.integers(0, VOCABULARY, own)] for name, own in INTERVENTIONS.items()}
        batch.append({
            "response": draw.integers(0, VOCABULARY, length).tolist(),
            "prompts": {name: [int(i) for i in ids] for name, ids in prompts.items()},
        })  # fmt: skip
    return batch


@contextmanager
def peer(*arguments: str, **environment: str) -> Iterator[Any]:
    """Start a process of benchmarks.learner_peers; yields a function from a question to its answer."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.learner_peers", *arguments],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE", **environment},
    )  # fmt: skip
    questions, answers = process.stdin, process.stdout
    assert questions is not None
    assert answers is not None
    try:
        assert answers.readline() == "ready\n", f"the process of {arguments[0]} did not start"

        def ask(question: Any) -> Any:
            questions.write(json.dumps(question) + "\n")
            questions.flush()
            return json.loads(answers.readline())

        yield ask
    finally:
        process.kill()


def ratio(theirs: list[dict[str, float]], ours: list[dict[str, float]], kind: str = "cpu") -> float:
    return round(statistics.median(a[kind] / b[kind] for a, b in zip(theirs, ours, strict=True)), 2)


def measure_heads() -> Iterator[dict[str, Any]]:
    with peer("head") as ask:
        for name, (vocabulary, hidden, counts) in HEADS.items():
            found = {}
            for tokens in counts:
                full, ours = _in_turns(ask, ("full", "ours"), vocabulary, hidden, tokens)
                found[str(tokens)] = {"cpu": ratio(full, ours), "wall": ratio(full, ours, "wall")}
                found[str(tokens)]["peak_mib"] = round(max(said["peak_mib"] for said in ours))
                found[str(tokens)]["peak_mib_full"] = round(max(said["peak_mib"] for said in full))
                print(name, tokens, found[str(tokens)], flush=True)
            yield {f"vs_full_{name}": min(one["cpu"] for one in found.values()), f"vs_full_{name}_by_tokens": found}
            if name == "49k":
                theirs, ours = _in_turns(ask, ("their product", "our product"), vocabulary, hidden, min(counts))
                yield {"product_vs_torch": ratio(theirs, ours)}
        for key, tokens in PEAKS.items():
            vocabulary, hidden, _ = HEADS["152k"]
            said = ask({"way": "ours", "vocabulary": vocabulary, "hidden": hidden, "tokens": tokens, "fresh": True})
            yield {key: round(said["peak_mib"])}


def _in_turns(
    ask: Any, ways: tuple[str, str], vocabulary: int, hidden: int, tokens: int
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Seconds and memory of two ways, without the first repetition, which is the warm-up."""
    question = {"vocabulary": vocabulary, "hidden": hidden, "tokens": tokens}
    rounds = [[ask({"way": way, **question}) for way in ways] for _ in range(REPEATS + 1)]
    first, second = zip(*rounds[1:], strict=True)
    return [*first], [*second]


def install_trl() -> None:
    """TRL and what it needs beyond our packages, into a folder of its own."""
    if (TRL_FILES / "trl").exists():
        return
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target"]
    subprocess.run([*pip, str(TRL_FILES), TRL, *TRL_NEEDS], check=True)


def measure_trl() -> Iterator[dict[str, Any]]:
    install_trl()
    model = str(smollm2())
    path = os.pathsep.join((str(TRL_FILES), os.environ.get("PYTHONPATH", "")))
    with peer("trl", model, PYTHONPATH=path) as trl, peer("calopd", model) as ours:
        batches = {suffix: draw_batch(lengths) for suffix, lengths in BATCHES.items()}
        spent: dict[str, dict[str, list[dict[str, float]]]] = {
            suffix: {"trl": [], "1": [], "3": []} for suffix in batches
        }
        # The batches take turns: what a step costs depends on the memory that earlier ones have left mapped.
        for repeat in range(WARM_UPS + STEPS):
            for suffix, batch in batches.items():
                for name, values in spent[suffix].items():
                    said = trl(batch) if name == "trl" else ours({"contexts": int(name), "batch": batch})
                    print(suffix or "paper's lengths", name, said, flush=True)
                    if repeat >= WARM_UPS:
                        values.append(said)
        for suffix, lengths in BATCHES.items():
            yield _compared(suffix, lengths, spent[suffix])


def _compared(suffix: str, lengths: list[int], spent: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    tokens = sum(lengths) + len(lengths) * (PROMPT + INTERVENTIONS["c0"])
    results: dict[str, Any] = {f"response_tokens{suffix}": lengths}
    for name, key in (("1", "vs_trl"), ("3", "vs_trl_3_contexts")):
        results[key + suffix] = ratio(spent["trl"], spent[name])
        results[f"{key}{suffix}_wall"] = ratio(spent["trl"], spent[name], "wall")
    results[f"tokens_per_second{suffix}"] = {
        name: round(tokens / statistics.median(said["wall"] for said in values), 1) for name, values in spent.items()
    }
    results[f"peak_mib_step{suffix}"] = {
        name: round(max(said["peak_mib"] for said in values)) for name, values in spent.items()
    }
    return results


def main() -> None:
    parts = {"head": measure_heads, "trl": measure_trl}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in sys.argv[1:] or parts:
        for part in parts[name]():
            results |= part
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1), "\n(ratios above 1 = we are faster)")
    print(f"written to benchmarks/results/{RESULTS.name}")


if __name__ == "__main__":
    main()
