"""Engines with a clock: the lengths and times of the plan, data of the right shape, and no way to mistake them."""

import time
from pathlib import Path

import numpy as np
import pytest

from calopd.config import Config, load_config
from calopd.core.errors import ConfigError
from calopd.core.score_checks import check_scores
from calopd.core.types import Sampling, ScoreOptions
from calopd.evaluation.evaluated_models import resolve
from calopd.planning.emulation import Emulation, Pacer
from calopd.planning.lengths import length_of_seed
from calopd.rundir.recorded_ratios import recorded_ratios
from services.rollout import engines as sampling
from services.rollout.engines.emulated_sampler import EmulatedSampler
from services.rollout.engines.sampling_engine import SampleRequest
from services.teacher_scorer import engines as scoring
from services.teacher_scorer.engines.scoring_engine import SequenceToScore
from tests.tiny import Tiny

EMULATED = ["teacher.engine=emulated", "rollout.engine=emulated", "learner.engine=emulated", "evaluation.problems=0"]
INSTANT = [*EMULATED, "emulation.gpu=h100", "emulation.time_scale=0", "rollout.max_tokens=16384"]
PROMPT = np.arange(5, 25, dtype=np.int32)


@pytest.fixture
def config(tiny: Tiny) -> Config:
    return load_config(
        tiny.write_config("emulated"),
        [*EMULATED, "emulation.gpu=h100", "emulation.time_scale=0", "rollout.max_tokens=16384"],
        {},
    )


def emulation(config: Config) -> Emulation:
    found = Emulation.of(config)
    assert found is not None
    return found


def sampler(config: Config) -> EmulatedSampler:
    return EmulatedSampler.configured(
        "", config.rollout, stop_ids=[2], max_model_len=100, seed=0, emulation=emulation(config)
    )


def sampled(engine: EmulatedSampler, count: int) -> list:
    """All responses to `count` requests, in the order of completion."""
    for key in range(count):
        engine.add(key, SampleRequest(PROMPT, Sampling(max_tokens=16_384), seed=key))
    finished: list = []
    while len(finished) < count:
        finished += engine.step()
    return finished


def test_responses_have_the_lengths_of_the_plan_and_short_ones_come_first(config):
    finished = sampled(sampler(config), config.rollout.max_in_flight)
    lengths = [len(one.response_ids) for one in finished]
    assert lengths == sorted(lengths)
    for one in finished:
        assert len(one.response_ids) == len(one.logprobs) == length_of_seed(one.key, limit=16_384)
        assert one.truncated == (len(one.response_ids) == 16_384)
        assert one.truncated or one.response_ids[-1] == 2
        assert set(one.response_ids[:-1].tolist()) <= set(PROMPT.tolist())


def test_all_responses_can_have_one_length(tiny):
    config = load_config(tiny.write_config("emulated"), [*INSTANT, "emulation.response_tokens=900"], {})
    assert {len(one.response_ids) for one in sampled(sampler(config), 4)} == {900}


def test_an_aborted_response_is_never_returned(config):
    engine = sampler(config)
    engine.add(100, SampleRequest(PROMPT, Sampling(max_tokens=8), seed=1))
    engine.abort({100})
    assert 100 not in {one.key for one in sampled(engine, 3)}


def test_in_phases_all_responses_are_returned_at_once(config, tiny):
    settings = [
        *EMULATED,
        "emulation.gpu=h100",
        "emulation.time_scale=0",
        "emulation.phases=true",
        "rollout.max_tokens=16384",
    ]
    engine = sampler(load_config(tiny.write_config("emulated"), settings, {}))
    for key in range(5):
        engine.add(key, SampleRequest(PROMPT, Sampling(max_tokens=16_384), seed=key))
    answers = [engine.step()]
    while not answers[-1]:
        answers.append(engine.step())
    assert len(answers[-1]) == 5
    assert len(answers) > 2


def test_scores_are_plausible_repeatable_and_differ_by_context(config):
    engine = scoring.build_engine(config.teacher, emulation(config))
    response = np.resize(PROMPT, 100)
    options = ScoreOptions(top_k=4, want_entropy=True)
    base, probe = engine.score(
        [SequenceToScore(PROMPT, response, options), SequenceToScore(PROMPT[:9], response)]
    ).scores
    for scores in (base, probe):
        check_scores(scores.logprobs, 100, engine.vocabulary_size)
    assert base.logprobs.tolist() != probe.logprobs.tolist()
    assert base.top_ids.shape == base.top_logprobs.shape == (100, 4)
    assert len(base.entropy) == 100
    assert engine.reference(SequenceToScore(PROMPT, response)).tolist() == base.logprobs.tolist()


def test_a_pacer_makes_up_for_delays_but_not_for_pauses(monkeypatch: pytest.MonkeyPatch):
    clock, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        clock[0] += seconds + 0.001  # wakes up a little late

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    pacer = Pacer(0.1)
    pacer.spend(1.0)
    pacer.spend(1.0)
    clock[0] += 5.0
    pacer.begin()
    clock[0] += 0.03
    pacer.spend(1.0)
    assert slept == [0.1, 0.099, 0.07]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["teacher.engine=torch"], "all three are, or none"),
        (["emulation.gpu="], "set emulation.gpu"),
        (["evaluation.problems=4"], "trains no model"),
        (['tracking.trackers=["tensorboard"]'], "trains no model"),
    ],
)
def test_what_would_look_like_a_real_run_is_refused(tiny, settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(tiny.write_config("emulated"), [*EMULATED, "emulation.gpu=h100", *settings], {})


def test_an_unknown_gpu_is_refused(tiny):
    config = load_config(tiny.write_config("emulated"), [*EMULATED, "emulation.gpu=h101"], {})
    with pytest.raises(ConfigError, match=r"h101.*h100"):
        Emulation.of(config)


def test_studies_and_evaluations_refuse_the_engines(config: Config):
    with pytest.raises(ConfigError, match="calopd run"):
        sampling.build_engine("", config.rollout, stop_ids=[], max_model_len=1, seed=0)
    with pytest.raises(ConfigError, match="calopd run"):
        scoring.build_engine(config.teacher)


def test_names_say_that_nothing_was_computed(config: Config, tmp_path: Path):
    assert emulation(config).name == "emulated h100"
    assert sampler(config).name.startswith("emulated")
    assert scoring.build_engine(config.teacher, emulation(config)).revision.startswith("emulated")


def test_the_results_of_an_emulated_run_are_not_used_as_those_of_a_real_one(config: Config, tmp_path: Path):
    (tmp_path / "config.toml").write_text(config.to_toml())
    (tmp_path / "summary.json").write_text('{"emulated": true}')
    with pytest.raises(ConfigError, match="trained no model"):
        resolve(str(tmp_path))
    with pytest.raises(ConfigError, match="ratios mean nothing"):
        recorded_ratios(tmp_path, "zero_ratio", 1)
