"""The packed pass against a plain one, for architectures that attend in their own ways."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from calopd.core.errors import EngineFailed
from services.teacher_scorer.engines.scoring_engine import SequenceToScore
from services.teacher_scorer.engines.torch_scorer import TorchScorer
from services.teacher_scorer.scheduler import Scheduler

SMALL = {
    "vocab_size": 400, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "initializer_range": 0.2,
}  # fmt: skip
MODELS = {
    "dense": (Qwen3ForCausalLM, Qwen3Config(**SMALL)),
    "experts": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(**SMALL, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32),
    ),
    "sliding window": (MistralForCausalLM, MistralConfig(**SMALL, sliding_window=24)),
}


def contexts_of_one_problem(seed: int = 0) -> list[SequenceToScore]:
    """Two rollouts of a problem under three contexts that begin alike, and one sequence that is there twice."""
    draw = np.random.default_rng(seed)
    shared = draw.integers(3, 390, 40, np.int32)
    prompts = [np.concatenate((shared, draw.integers(3, 390, n, np.int32))) for n in (2, 9, 11)]
    responses = [draw.integers(3, 390, n, np.int32) for n in (70, 31)]
    sequences = [SequenceToScore(prompt, response) for response in responses for prompt in prompts]
    return [*sequences, sequences[0]]


@pytest.fixture(params=MODELS)
def engine(request, tmp_path):
    torch.manual_seed(0)
    architecture, config = MODELS[request.param]
    architecture(config).save_pretrained(tmp_path)
    return TorchScorer(str(tmp_path), dtype="float32", device="cpu")


def test_packed_sequences_score_as_each_alone(engine):
    sequences = contexts_of_one_problem()
    scored = engine.score(sequences)
    for scores, sequence in zip(scored.scores, sequences, strict=True):
        assert np.abs(scores.logprobs - engine.reference(sequence)).max() < 1e-4
    prompts = 40 + 2 + 9 + 11
    assert scored.computed_tokens == prompts + 3 * (70 + 31 - 2)


def test_what_the_engine_fails_on_does_not_fail_its_neighbours(tiny):
    engine = TorchScorer(str(tiny.teacher), dtype="float32", device="cpu")
    good, bad = contexts_of_one_problem()[0], SequenceToScore(np.array([5], np.int32), np.array([9_999], np.int32))
    scheduler = Scheduler(engine, batch_tokens=4_096, max_waiting=8)

    async def run() -> list[Any]:
        calls = (scheduler.score([sequence], client=str(i)) for i, sequence in enumerate((good, bad, good)))
        return await asyncio.gather(*calls, return_exceptions=True)

    try:
        first, failed, last = asyncio.run(run())
    finally:
        scheduler.stop()
    assert isinstance(failed, EngineFailed)
    expected = engine.reference(good)
    for scored in (first, last):
        assert np.abs(scored[0].scores.logprobs - expected).max() < 1e-4
