"""With `run.deterministic`, no bit of a response or a score depends on what else an engine works on."""

import asyncio

import numpy as np
import pytest

from calopd.config import load_config
from calopd.core.errors import ConfigError
from calopd.core.types import Sampling, ScoreOptions
from calopd.models.devices import cuda_available
from services.rollout import engines as sampling_engines
from services.rollout.engines.sampling_engine import SampleRequest
from services.rollout.sampler import SamplingLoop
from services.teacher_scorer import engines as scoring_engines
from services.teacher_scorer.engines.scoring_engine import SequenceToScore
from services.teacher_scorer.scheduler import Scheduler

COUNT = 12


@pytest.fixture
def config(tiny):
    return load_config(tiny.write_config("deterministic"), ["run.deterministic=true"], {})


def sampling_loop(config) -> SamplingLoop:
    engine = sampling_engines.build_engine(
        config.student.path, config.rollout, stop_ids=[2], max_model_len=300, seed=0, deterministic=True
    )
    return SamplingLoop(engine)


def test_a_response_is_the_same_alone_in_company_and_in_another_engine(config):
    draw = np.random.default_rng(0)
    wanted = [
        SampleRequest(draw.integers(3, 390, draw.integers(5, 90), np.int32), Sampling(1.0, 1.0, 24), seed)
        for seed in range(COUNT)
    ]
    found = []
    for order in (wanted, wanted[::-1]):
        loop = sampling_loop(config)
        futures = {request.seed: loop.sample(request) for request in order}
        samples = {seed: future.result(timeout=300) for seed, future in futures.items()}
        last = loop.sample(wanted[3]).result(timeout=300)
        loop.stop()
        samples[COUNT] = last
        assert last.logprobs.tobytes() == samples[3].logprobs.tobytes()
        found.append({seed: (s.response_ids.tobytes(), s.logprobs.tobytes()) for seed, s in samples.items()})
    assert found[0] == found[1]


def test_scores_are_the_same_alone_and_in_company(config):
    draw = np.random.default_rng(0)
    options = ScoreOptions(top_k=4, want_entropy=True)
    requests = []
    for _ in range(COUNT):
        prompt, response = draw.integers(3, 390, 40, np.int32), draw.integers(3, 390, draw.integers(2, 60), np.int32)
        contexts = [np.concatenate((prompt, draw.integers(3, 390, n, np.int32))) for n in (2, 9, 30)]
        requests.append([SequenceToScore(context, response, options) for context in contexts])
    engine = scoring_engines.build_engine(config.teacher, deterministic=True)
    scheduler = Scheduler(engine, batch_tokens=150, max_waiting=2 * COUNT, separately=True)

    async def ask(together: bool) -> list[bytes]:
        calls = [scheduler.score(request, client=str(i % 3)) for i, request in enumerate(requests)]
        answers = await asyncio.gather(*calls) if together else [await call for call in calls]
        return [
            b"".join(array.tobytes() for part in answer for array in part.scores.arrays().values())
            for answer in answers
        ]

    try:
        alone, together = asyncio.run(ask(False)), asyncio.run(ask(True))
    finally:
        scheduler.stop()
    assert alone == together


@pytest.mark.skipif(cuda_available(), reason="on a GPU vLLM has a batch-invariant mode")
def test_vllm_refuses_on_a_cpu(config):
    rollout = config.rollout.model_copy(update={"engine": "vllm"})
    with pytest.raises(ConfigError, match=r'no batch-invariant mode on a CPU. Set rollout.engine = "torch"'):
        sampling_engines.build_engine("", rollout, stop_ids=[], max_model_len=1, seed=0, deterministic=True)
    teacher = config.teacher.model_copy(update={"engine": "vllm"})
    with pytest.raises(ConfigError, match=r'Set teacher.engine = "torch"'):
        scoring_engines.build_engine(teacher, deterministic=True)
