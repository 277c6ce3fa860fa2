"""Benchmark of a learner step: sequences packed without padding, against micro-batches padded to their longest one.

python -m benchmarks.packing   (or `make bench-packing`): medians of interleaved repetitions in one run, in CPU seconds.
Lengths follow the paper's responses, divided by SCALE; so is the size of a micro-batch. Both sides recompute
activations and share the LM head.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.model_builders import random_qwen3
from calopd.core.lm_head import policy_objective
from calopd.models.packing import ATTENTION, pack, use_packed_attention
from calopd.planning.lengths import draw_lengths
from calopd.transport.queue import Arrival
from services.learner.batching import DynamicBatcher
from services.learner.student import HeadObjective, Student

RESULTS = Path(__file__).parent / "results" / "packing.json"
PROMPT = 160
MICRO_BATCH = 32_768
SCALE, TRAJECTORIES, VOCABULARY, CHUNK, REPEATS = 16, 32, 8_192, 256, 5


def padded_batches(tokens: list[int], limit: int) -> list[list[int]]:
    """Micro-batches of at most `limit` tokens, padding included: the rule of a learner that pads."""
    batches: list[list[int]] = [[]]
    for index, length in enumerate(tokens):
        longest = max([length, *(tokens[i] for i in batches[-1])])
        if batches[-1] and longest * (len(batches[-1]) + 1) > limit:
            batches.append([])
        batches[-1].append(index)
    return batches


def packed_batches(tokens: list[int], limit: int) -> list[list[int]]:
    """The learner's micro-batches."""
    batcher = DynamicBatcher(len(tokens), limit, deterministic=True)
    batcher.add([Arrival(f"{i}-0", i, length) for i, length in enumerate(tokens)])
    batches = []
    while (assignment := batcher.take()) is not None:
        batches += assignment
    return batches


def padding_share(tokens: list[int], batches: list[list[int]]) -> float:
    computed = sum(max(tokens[i] for i in batch) * len(batch) for batch in batches)
    return 1 - sum(tokens) / computed


@dataclass(frozen=True)
class Sequence:
    ids: np.ndarray
    """Prompt and response."""
    prompt: int

    @property
    def inputs(self) -> np.ndarray:
        return self.ids[:-1]

    @property
    def response(self) -> np.ndarray:
        return self.ids[self.prompt :]


def coefficients(part: slice, logprobs: Tensor) -> Tensor:
    return (logprobs + 3).clamp(-10, 10)


def padded_pass(student: Student, sequences: list[Sequence]) -> Tensor:
    """The objective of a padded micro-batch, as plain transformers computes it."""
    longest = max(len(s.inputs) for s in sequences)
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    rows = []
    for i, sequence in enumerate(sequences):
        ids[i, : len(sequence.inputs)] = torch.from_numpy(sequence.inputs)
        rows.append(torch.arange(sequence.prompt - 1, len(sequence.inputs)) + i * longest)
    hidden = student.lm.model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
    targets = torch.from_numpy(np.concatenate([s.response for s in sequences]))
    weight = student.lm.lm_head.weight
    return policy_objective(hidden[torch.cat(rows)], weight, targets, coefficients, rows=CHUNK)[0]


def packed_pass(student: Student, sequences: list[Sequence]) -> Tensor:
    packed = pack([s.inputs for s in sequences], share=False)
    rows = [own[s.prompt - 1 :] for own, s in zip(packed.rows, sequences, strict=True)]
    targets = torch.from_numpy(np.concatenate([s.response for s in sequences]))
    loss: Tensor = student(packed, torch.from_numpy(np.concatenate(rows)), targets, HeadObjective(coefficients))[0]
    return loss


def model() -> Student:
    lm = random_qwen3(vocabulary=VOCABULARY, hidden=256, layers=4, heads=4)
    use_packed_attention("model", lm)
    lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return Student(lm.train(), CHUNK, stored_tokens=0)


def step(
    student: Student,
    attention: str,
    forward: Callable[[Student, list[Sequence]], Tensor],
    batches: list[list[Sequence]],
) -> tuple[float, float, dict[str, Tensor]]:
    """CPU seconds, seconds and gradients of one step."""
    student.lm.set_attn_implementation(attention)
    student.zero_grad(set_to_none=True)
    cpu, wall = time.process_time(), time.perf_counter()
    for sequences in batches:
        forward(student, sequences).backward()  # type: ignore[no-untyped-call]
    seconds = time.process_time() - cpu, time.perf_counter() - wall
    return *seconds, {name: p.grad for name, p in student.named_parameters() if p.grad is not None}


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Norm of the difference of two gradients, relative to the norm."""
    apart = sum(float(((one[name] - other[name]).double() ** 2).sum()) for name in one)
    return float((apart / sum(float((g.double() ** 2).sum()) for g in one.values())) ** 0.5)


def measure() -> dict[str, Any]:
    draw = np.random.default_rng(1)
    prompt = PROMPT // SCALE
    lengths = [max(1, length // SCALE) for length in draw_lengths(TRAJECTORIES, seed=0)]
    sequences = [Sequence(draw.integers(0, VOCABULARY, prompt + n), prompt) for n in lengths]
    tokens = [len(s.ids) for s in sequences]
    limit = MICRO_BATCH // SCALE
    cuts = {"padded": padded_batches(tokens, limit), "packed": packed_batches(tokens, limit)}
    works = {"padded": ("sdpa", padded_pass), "packed": (ATTENTION, packed_pass)}
    student = model()
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    gradients: dict[str, dict[str, Tensor]] = {}
    for repeat in range(REPEATS + 1):
        for name, (attention, forward) in works.items():
            batches = [[sequences[i] for i in batch] for batch in cuts[name]]
            cpu, wall, gradients[name] = step(student, attention, forward, batches)
            if repeat:  # the first repetition is the warm-up
                seconds[name].append((cpu, wall))
    ratios = [a[0] / b[0] for a, b in zip(seconds["padded"], seconds["packed"], strict=True)]
    sides = {
        name: {
            "micro_batches": len(cuts[name]),
            "tokens_per_cpu_second": round(sum(tokens) / statistics.median(cpu for cpu, _ in values)),
            "tokens_per_second": round(sum(tokens) / statistics.median(wall for _, wall in values)),
            "padding_share": round(padding_share(tokens, cuts[name]), 3) if name == "padded" else 0.0,
        }
        for name, values in seconds.items()
    }
    return {
        "tokens": sum(tokens),
        **sides,
        "packed_vs_padded": round(statistics.median(ratios), 2),
        "gradient_difference": float(f"{difference(gradients['padded'], gradients['packed']):.1e}"),
    }


def at_full_length(limit: int) -> dict[str, Any]:
    """Padding of micro-batches of the paper's lengths: arithmetic, nothing is computed."""
    lengths = draw_lengths(4_096, seed=2)
    tokens = [PROMPT + n for n in lengths]
    padded = padded_batches(tokens, limit)
    return {
        "mean": round(statistics.mean(lengths)),
        "median": round(statistics.median(lengths)),
        "padding_share_padded": round(padding_share(tokens, padded), 3),
        "micro_batches_padded": len(padded),
        "micro_batches_packed": len(packed_batches(tokens, limit)),
    }


def main() -> None:
    results = {
        "step": measure(),
        "full_length": {f"micro_batch_tokens={limit}": at_full_length(limit) for limit in (20_480, MICRO_BATCH)},
    }
    print(json.dumps(results, indent=1), "\n(packed_vs_padded above 1 = packed is faster)")
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to benchmarks/results/{RESULTS.name}")


if __name__ == "__main__":
    main()
