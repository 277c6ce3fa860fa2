"""The small torch sampler: right log-probabilities, seeds that do not depend on company, honest top-p."""

from collections import Counter

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from calopd.core.types import Sample, Sampling
from calopd.rundir.policies import policy_dir, publish_policy
from services.rollout.engines.sampling_engine import SampleRequest
from services.rollout.engines.torch_sampler import TorchSampler
from services.rollout.sampler import SamplingLoop, WrongPolicy


@pytest.fixture(scope="module")
def loop(tiny):
    loop = SamplingLoop(TorchSampler(str(tiny.student), stop_ids=[2, 5], dtype="float32", device="cpu", max_rows=8))
    yield loop
    loop.stop()


@pytest.fixture(scope="module")
def model(tiny):
    return AutoModelForCausalLM.from_pretrained(tiny.student, dtype=torch.float32).eval()


def requests(count: int, sampling: Sampling) -> list[SampleRequest]:
    draw = np.random.default_rng(0)
    return [
        SampleRequest(draw.integers(3, 390, draw.integers(5, 40), np.int32), sampling, seed) for seed in range(count)
    ]


def sample(loop: SamplingLoop, wanted: list[SampleRequest]) -> list[Sample]:
    return [future.result(timeout=300) for future in [loop.sample(request) for request in wanted]]


def plain(model, prompt: np.ndarray, response: np.ndarray) -> torch.Tensor:
    ids = torch.from_numpy(np.concatenate((prompt, response)).astype(np.int64))
    with torch.no_grad():
        return model(ids[None]).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]


def test_log_probabilities_are_the_models_at_temperature_one(loop, model):
    wanted = requests(20, Sampling(0.7, 1.0, 30))
    samples = sample(loop, wanted)
    for request, got in zip(wanted, samples, strict=True):
        full = plain(model, request.prompt_ids, got.response_ids)
        own = full.gather(1, torch.from_numpy(got.response_ids.astype(np.int64))[:, None]).squeeze(1)
        assert np.abs(own.numpy() - got.logprobs).max() < 1e-4
        assert got.truncated == (got.response_ids[-1] not in (2, 5))
        assert len(got.response_ids) == 30 or not got.truncated
        assert not set(got.response_ids[:-1].tolist()) & {2, 5}
    assert any(not got.truncated for got in samples)
    assert any(got.truncated for got in samples)


def test_a_seed_gives_the_same_response_alone_and_in_company(loop):
    wanted = requests(12, Sampling(1.0, 1.0, 20))
    together = sample(loop, wanted)
    alone = [sample(loop, [request])[0] for request in wanted]
    assert all(np.array_equal(a.response_ids, b.response_ids) for a, b in zip(together, alone, strict=True))


def test_temperature_zero_takes_the_most_likely_token(loop, model):
    wanted = requests(4, Sampling(temperature=0, max_tokens=6))
    for request, found in zip(wanted, sample(loop, wanted), strict=True):
        logprobs = plain(model, request.prompt_ids, found.response_ids)
        assert logprobs.argmax(-1).tolist() == found.response_ids.tolist()
        assert np.allclose(found.logprobs, logprobs.max(-1).values.numpy(), atol=1e-4)


def test_first_tokens_follow_the_distribution(loop, model):
    prompt = np.arange(10, 30, dtype=np.int32)
    count = 3_000
    wanted = [SampleRequest(prompt, Sampling(1.0, 0.6, 1), seed) for seed in range(count)]
    seen = Counter(int(got.response_ids[0]) for got in sample(loop, wanted))
    probabilities, order = plain(model, prompt, np.array([0], np.int32))[0].exp().sort(descending=True)
    nucleus = int((probabilities.cumsum(0) < 0.6).sum()) + 1
    assert set(seen) <= set(order[:nucleus].tolist())
    expected = probabilities[:nucleus] / probabilities[:nucleus].sum()
    for token, share in zip(order[:5].tolist(), expected[:5].tolist(), strict=True):
        assert abs(seen[token] / count - share) < 4 * (share * (1 - share) / count) ** 0.5


def test_a_policy_is_loaded_between_responses_and_never_the_wrong_one(tiny, tmp_path, model):
    loop = SamplingLoop(TorchSampler(str(tiny.student), stop_ids=[2], dtype="float32", device="cpu", max_rows=8))
    weights = {name: t * 1.5 for name, t in model.state_dict().items() if name != "lm_head.weight"}
    prompt = np.arange(10, 30, dtype=np.int32)
    before = loop.sample(SampleRequest(prompt, Sampling(1.0, 1.0, 20), 1, policy_version=0))
    publish_policy(tmp_path, 4, weights, "r")
    loading = loop.load_policy(policy_dir(tmp_path, 4), 4)
    after = loop.sample(SampleRequest(prompt, Sampling(1.0, 1.0, 20), 1, policy_version=4))
    late = loop.sample(SampleRequest(prompt, Sampling(1.0, 1.0, 20), 1, policy_version=0))
    assert before.result(300).policy_version == 0
    loading.result(300)
    assert after.result(300).policy_version == 4
    assert not np.allclose(before.result().logprobs[0], after.result().logprobs[0])
    with pytest.raises(WrongPolicy):
        late.result(300)
    loop.stop()


def test_the_loop_survives_a_policy_that_nobody_waits_for_any_more(tiny, tmp_path, model):
    loop = SamplingLoop(TorchSampler(str(tiny.student), stop_ids=[2], dtype="float32", device="cpu", max_rows=8))
    publish_policy(tmp_path, 4, {n: t for n, t in model.state_dict().items() if n != "lm_head.weight"}, "r")
    request = SampleRequest(np.arange(10, 30, dtype=np.int32), Sampling(1.0, 1.0, 20), 1, policy_version=0)
    running = loop.sample(request)
    # Whether it is cancelled before, during or after it is loaded: the loop goes on.
    for _ in range(20):
        loop.load_policy(policy_dir(tmp_path, 4), 4).cancel()
    running.result(300)
    loop.load_policy(policy_dir(tmp_path, 4), 4).result(300)
    assert not loop.failed
    loop.stop()
