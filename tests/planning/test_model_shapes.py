"""Shapes of models: parameters against models that transformers builds, and where config.json is found."""

import json

import pytest
import torch

from calopd.planning.known_models import KNOWN_MODELS
from calopd.planning.model_shapes import load_shape, shape_of

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
}
OTHERS = {
    "llama": {**SMALL, "model_type": "llama", "tie_word_embeddings": False},
    "qwen2": {**SMALL, "model_type": "qwen2", "tie_word_embeddings": True},
    "mistral": {**SMALL, "model_type": "mistral", "head_dim": 24},
}


@pytest.mark.parametrize("name", [*KNOWN_MODELS, *OTHERS])
def test_parameters_are_those_of_the_model_that_transformers_builds(name):
    from transformers import AutoConfig, AutoModelForCausalLM

    given = dict((KNOWN_MODELS | OTHERS)[name])
    shape = shape_of(given)
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.layer_parameters == sum(p.numel() for p in model.model.layers[0].parameters())


def test_the_kv_cache_of_a_token_is_keys_and_values_of_all_layers():
    assert load_shape("Qwen/Qwen3-1.7B").kv_bytes(2) == 2 * 28 * 8 * 128 * 2


def test_a_quantised_model_is_smaller_but_keeps_its_embedding(tmp_path):
    values = KNOWN_MODELS["Qwen/Qwen3-4B"]
    (tmp_path / "config.json").write_text(json.dumps({**values, "quantization_config": {"quant_method": "fp8"}}))
    whole, small = shape_of(values), load_shape(str(tmp_path))
    assert small.parameters == whole.parameters
    assert small.weight_bytes(2) == whole.layers * whole.layer_parameters + 2 * whole.root_parameters


def test_an_unknown_model_or_architecture_has_no_shape(tmp_path):
    assert load_shape("nobody/has-this-model") is None
    assert load_shape("not a hub id at all") is None
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "mamba"}))
    assert load_shape(str(tmp_path)) is None
