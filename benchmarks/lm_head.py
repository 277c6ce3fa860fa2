"""Benchmark of the LM head: gradient computed chunk by chunk in the forward pass, against full logits and autograd.

python -m benchmarks.lm_head   (or `make bench`): ratios of CPU seconds, medians of interleaved repetitions in one run.
Baseline: hidden @ W^T -> log_softmax -> gather -> backward, as in transformers and most trainers.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from calopd.core.lm_head import policy_objective, score_targets

RESULTS = Path(__file__).parent / "results" / "lm_head.json"
TOKENS, HIDDEN = 512, 256
VOCABULARIES = (49_152, 151_936)
REPEATS = 5


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(vocabulary: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator, requires_grad=True)
    weight = torch.randn(vocabulary, HIDDEN, generator=generator).mul_(0.05).requires_grad_()
    targets = torch.randint(vocabulary, (TOKENS,), generator=generator)
    teacher = -torch.rand(TOKENS, generator=generator)

    def full() -> None:
        logprobs = (hidden @ weight.T).log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
        (-(teacher - logprobs.detach()) * logprobs).sum().backward()

    def chunked() -> None:
        policy_objective(hidden, weight, targets, lambda part, own: own - teacher[part], rows=256)[0].backward()

    def full_scores() -> None:
        with torch.no_grad():
            (hidden @ weight.T).log_softmax(-1).gather(1, targets[:, None])

    def chunked_scores() -> None:
        score_targets(hidden.detach(), weight.detach(), targets, rows=128)

    pairs = {"learner": (full, chunked), "teacher": (full_scores, chunked_scores)}
    ratios: dict[str, list[float]] = {name: [] for name in pairs}
    for repeat in range(REPEATS + 1):
        for name, (peer, ours) in pairs.items():
            seconds = [cpu_seconds(work) for work in (peer, ours)]
            hidden.grad = weight.grad = None
            if repeat:  # the first repetition is the warm-up
                ratios[name].append(seconds[0] / seconds[1])
    return {f"{name}_vs_full_logits": round(statistics.median(values), 2) for name, values in ratios.items()}


def main() -> None:
    results = {f"V={vocabulary}": measure(vocabulary) for vocabulary in VOCABULARIES}
    for name, ratios in results.items():
        print(name, ratios, "(above 1 = we are faster)")
    RESULTS.write_text(json.dumps({"tokens": TOKENS, "hidden": HIDDEN, "ratios": results}, indent=1) + "\n")
    print(f"written to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")


if __name__ == "__main__":
    main()
