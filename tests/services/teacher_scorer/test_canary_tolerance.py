"""The canary passes a good teacher with the noise of bfloat16 and of experts, and refuses wrong engines."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from calopd.core.errors import UnhealthyTeacher
from calopd.data.problems import load_problems
from calopd.models.tokenizers import load_tokenizer
from services.teacher_scorer.canary import Canary
from services.teacher_scorer.engines.scoring_engine import SequenceToScore
from services.teacher_scorer.engines.torch_scorer import TorchScorer
from services.teacher_scorer.scheduler import Scheduler
from tests.services.processes import ROOT

DEMO = ROOT / "examples" / "demo"


@pytest.fixture
def engine():
    """A trained model: its scores of a text are mostly near 0, as those of a real teacher are."""
    engine = TorchScorer(str(DEMO / "teacher"), dtype="float32", device="cpu")
    engine.dtype = torch.bfloat16  # the tolerance of bfloat16, with noise added below: not every CPU computes in it
    return engine


@pytest.fixture(scope="module")
def ids():
    tokenizer = load_tokenizer(str(DEMO / "teacher"))
    problems = load_problems(DEMO / "train.jsonl")[:4]
    return np.asarray(tokenizer.encode(" ".join(f"{p.problem} {p.solution}" for p in problems)), dtype=np.int32)


def checked(engine, ids, plant) -> None:
    canary = Canary(engine, ids)
    plant(engine)
    scheduler = Scheduler(engine, batch_tokens=4_096, max_waiting=2)
    try:
        asyncio.run(canary.check(scheduler))
    finally:
        scheduler.stop()


def change_scores(change):
    """An engine whose log-probabilities come out changed."""

    def plant(engine):
        plain = engine.score

        def score(sequences):
            batch = plain(sequences)
            return replace(batch, scores=[replace(s, logprobs=change(s.logprobs)) for s in batch.scores])

        engine.score = score

    return plant


def noise(scale: float, flipped: float = 0.0, by: float = 0.0):
    """Rounding of every token, and a share of tokens that went to other experts."""
    draw = np.random.default_rng(0)

    def change(logprobs):
        far = draw.random(len(logprobs)) < flipped
        shift = draw.normal(0, scale, len(logprobs)) + far * draw.choice((-by, by), len(logprobs))
        return np.minimum(logprobs + shift, 0).astype(np.float32)

    return change_scores(change)


@pytest.mark.parametrize(
    "plant",
    [lambda engine: None, noise(0.02), noise(0.03, flipped=0.05, by=1.0), noise(0.04, flipped=0.07, by=2.0)],
    ids=["none", "bfloat16", "experts", "many experts"],
)
def test_noise_of_a_good_teacher_passes(engine, ids, plant):
    checked(engine, ids, plant)


def scaled(temperature: float):
    def plant(engine):
        with torch.no_grad():
            engine._lm.lm_head.weight /= temperature

    return plant


def untied(plant):
    """Faults of the head must not change the embeddings."""

    def planted(engine):
        engine._lm.lm_head.weight = torch.nn.Parameter(engine._lm.lm_head.weight.clone(), requires_grad=False)
        plant(engine)

    return planted


def other_ids(engine):
    plain = engine.score

    def score(sequences):
        return plain([SequenceToScore(s.prompt_ids, (s.response_ids + 1) % 390, s.options) for s in sequences])

    engine.score = score


def dropped_layer(engine):
    del engine._lm.model.layers[1]


def interfering(engine):
    """Sequences of one batch that see one another."""
    plain = engine.score

    def mixed(own, other):
        middle = min(len(own), len(other)) // 2
        return np.concatenate((other[::-1][:middle], own[middle:]))

    def score(sequences):
        others = [sequences[-1].prompt_ids, *(s.prompt_ids for s in sequences[:-1])]
        pairs = zip(sequences, others, strict=True)
        return plain([SequenceToScore(mixed(s.prompt_ids, other), s.response_ids) for s, other in pairs])

    engine.score = score


FAULTS = {
    "off by one": change_scores(lambda logprobs: np.roll(logprobs, 1)),
    "temperature 0.6": untied(scaled(0.6)),
    "temperature 0.9": untied(scaled(0.9)),
    "temperature 1.2": untied(scaled(1.2)),
    "other ids": other_ids,
    "a dropped layer": dropped_layer,
    "sequences that interfere": interfering,
    "half of the scores": change_scores(lambda logprobs: logprobs / 2),
    "NaN": change_scores(lambda logprobs: np.where(np.arange(len(logprobs)) == 3, np.nan, logprobs)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_engine_is_refused(engine, ids, fault):
    with pytest.raises(UnhealthyTeacher):
        checked(engine, ids, FAULTS[fault])


def test_the_expected_scores_are_those_of_float32_logits(engine, ids):
    """Logits near 24 that are rounded to bfloat16 would be off by up to 0.06."""
    sequence = SequenceToScore(ids[:20], ids[20:60])
    exact = engine.reference(sequence)
    head = engine._lm.lm_head
    plain = head.forward

    def rounding(hidden):
        return plain(hidden).bfloat16()

    head.forward = rounding
    assert np.abs(engine.reference(sequence) - exact).max() < 1e-5
    assert head.forward is rounding
