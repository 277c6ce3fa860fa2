"""The vLLM sampler's policy updates: nothing is sampled from keys and values of old weights."""

from typing import Any

import numpy as np
import pytest

from calopd.core.errors import EngineFailed
from calopd.core.types import Sampling
from services.rollout.engines.sampling_engine import Finished, SampleRequest
from services.rollout.engines.vllm_sampler import reset_prefix_cache
from services.rollout.sampler import SamplingLoop, WrongPolicy


class Cache:
    """vLLM's engine as far as its prefix cache goes; it refuses while `busy` requests hold blocks."""

    def __init__(self, busy: int, stuck: bool = False) -> None:
        self.busy, self.stuck, self.clean = busy, stuck, False

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        if reset_running_requests and not self.stuck:
            self.busy = 0
        self.clean = not self.busy
        return self.clean


@pytest.mark.parametrize("busy", [0, 3])
def test_the_cache_is_clean_after_an_update(busy):
    engine = Cache(busy)
    reset_prefix_cache(engine)
    assert engine.clean


def test_a_cache_that_cannot_be_cleaned_is_an_error():
    with pytest.raises(EngineFailed, match="did not reset its prefix cache"):
        reset_prefix_cache(Cache(1, stuck=True))


class Engine:
    """A sampler whose first update fails."""

    name = "failing"

    def __init__(self) -> None:
        self.updates = 0
        self.keys: list[int] = []

    def add(self, key, request):
        self.keys.append(key)

    def step(self):
        keys, self.keys = self.keys, []
        return [Finished(key, np.array([1], np.int32), np.zeros(1, np.float32), False) for key in keys]

    def load(self, directory):
        self.updates += 1
        if self.updates == 1:
            reset_prefix_cache(Cache(1, stuck=True))


def test_nothing_is_sampled_after_a_failed_update_until_one_succeeds(tmp_path):
    engine: Any = Engine()
    loop = SamplingLoop(engine)
    request = SampleRequest(np.array([3], np.int32), Sampling(), seed=0)
    try:
        assert loop.sample(request).result().policy_version == 0
        with pytest.raises(EngineFailed):
            loop.load_policy(tmp_path, 1).result()
        with pytest.raises(WrongPolicy, match="could not be loaded"):
            loop.sample(request).result()
        loop.load_policy(tmp_path, 1).result()
        assert loop.sample(request).result().policy_version == 1
    finally:
        loop.stop()
