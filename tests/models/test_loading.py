"""Models are loaded in the wanted data type, straight to their device."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from calopd.core.errors import ConfigError
from calopd.models.loading import load_causal_lm
from services.rollout.engines.torch_sampler import TorchSampler
from services.teacher_scorer.engines.torch_scorer import TorchScorer

GPU = torch.device("cuda", 3)


class Loaded(Exception):
    """Raised by the stand-in for the library, with what it was asked for."""


@pytest.fixture
def asked(monkeypatch):
    def from_pretrained(path, **options):
        raise Loaded(options)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)


@pytest.mark.parametrize(
    "load",
    [
        lambda path: TorchScorer(path, dtype="auto", device="cuda:3"),
        lambda path: TorchSampler(path, stop_ids=[2], dtype="auto", device="cuda:3", max_rows=1),
    ],
    ids=["teacher", "sampler"],
)
def test_an_engine_on_a_gpu_never_holds_the_model_in_main_memory(asked, load):
    """`device_map` makes the library copy each tensor from its file to the device; `.to()` afterwards would not."""
    with pytest.raises(Loaded) as raised:
        load("model")
    options = raised.value.args[0]
    assert options["device_map"] == {"": GPU}
    assert options["dtype"] is torch.bfloat16
    assert options["use_safetensors"]
    assert not options["trust_remote_code"]


def test_a_model_loaded_to_a_device_is_the_model(tiny):
    plain = load_causal_lm("k", str(tiny.teacher), torch.float32)
    placed = load_causal_lm("k", str(tiny.teacher), torch.float32, torch.device("cpu"))
    assert {name: tuple(t.shape) for name, t in placed.state_dict().items()}
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, placed.state_dict()[name])
        assert placed.state_dict()[name].device.type == "cpu"
    assert placed.lm_head.weight is placed.model.embed_tokens.weight


def test_a_path_without_a_model_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"teacher\.path = .*cannot load a model"):
        load_causal_lm("teacher.path", str(tmp_path), torch.float32, torch.device("cpu"))
