"""The vLLM sampler: the settings of its engine on a GPU, and policy updates that leave no old key or value."""

import json
import logging
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calopd.config import load_config
from calopd.core.errors import EngineFailed
from calopd.core.types import Sampling
from calopd.planning.rollout_limits import limited_rollout
from services.rollout.engines.sampling_engine import Finished, SampleRequest
from services.rollout.engines.vllm_sampler import VllmSampler, _expected_warnings_hidden, reset_prefix_cache
from services.rollout.sampler import SamplingLoop, WrongPolicy
from tests.services.processes import ROOT


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


@pytest.mark.parametrize("tied", [True, False])
def test_of_the_layers_without_weights_only_the_expected_are_not_reported(tied, caplog, monkeypatch):
    """vLLM warns of each policy's tables of positions and tied LM head; another layer would be a real loss."""
    log = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    monkeypatch.setattr(log, "propagate", False)
    layers = ("RotaryEmbedding", "YaRNScalingRotaryEmbedding", "ParallelLMHead", "QKVParallelLinear")

    def warn() -> list[str]:
        caplog.clear()
        for layer in layers:
            log.warning("%s: Failed to load weights", layer)
        return [message.partition(":")[0] for message in caplog.messages]

    with _expected_warnings_hidden(SimpleNamespace(config=SimpleNamespace(tie_word_embeddings=tied))):
        assert warn() == (["QKVParallelLinear"] if tied else ["ParallelLMHead", "QKVParallelLinear"])
        log.warning("%s: another trouble", "RotaryEmbedding")
        assert caplog.messages[-1] == "RotaryEmbedding: another trouble"
    assert warn() == list(layers)


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


@pytest.fixture
def engine_settings(vllm_settings):
    """The settings that vLLM gets for a model and a section [rollout] on a GPU."""

    def of(path, rollout) -> dict[str, Any]:
        return vllm_settings(
            lambda: VllmSampler.configured(str(path), rollout, stop_ids=[2], max_model_len=300, seed=0)
        )

    return of


@pytest.mark.parametrize("name", ["single-gpu", "single-gpu-80gb", "qwen3-4b-to-1.7b"])
def test_beside_other_roles_the_cache_has_a_size_that_does_not_depend_on_what_they_allocate(
    tiny, engine_settings, name
):
    """vLLM measures free memory before and after its first pass, and counts the difference as its own."""
    rollout = limited_rollout(load_config(ROOT / "configs" / f"{name}.toml", environ={}))
    size = engine_settings(tiny.student, rollout)["kv_cache_memory_bytes"]
    if not name.startswith("single"):
        assert size is None
        return
    gpu_gib, weights_gib = (23.6, 3.2) if name == "single-gpu" else (79.1, 3.2)
    assert 1 < size / 2**30 < rollout.gpu_memory_utilization * gpu_gib - weights_gib


@pytest.mark.parametrize("quantised", [False, True])
def test_the_head_of_a_quantised_model_keeps_its_type(tiny, tmp_path, engine_settings, quantised):
    shutil.copytree(tiny.student, tmp_path / "student")
    file = tmp_path / "student" / "config.json"
    more = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}} if quantised else {}
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
    rollout = limited_rollout(load_config(ROOT / "configs" / "qwen3-4b-to-1.7b.toml", environ={}))
    given = engine_settings(tmp_path / "student", rollout)["hf_overrides"]
    assert given == ({} if quantised else {"head_dtype": "float32"})
