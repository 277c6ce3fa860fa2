"""The seconds of a plan: by hand, against published measurements, and measured on this machine."""

import argparse
from dataclasses import replace

import pytest
import torch

from calopd.cli.commands import plan as plan_command
from calopd.config import load_config
from calopd.planning.gpus import GPU, GPUS
from calopd.planning.known_models import KNOWN_MODELS
from calopd.planning.measured_rates import Layer, measure
from calopd.planning.model_shapes import ModelShape, shape_of
from calopd.planning.passes import Passes
from calopd.planning.plan_tables import assumptions
from calopd.planning.rates import (
    ASSUMED,
    Efficiency,
    active_layer_parameters,
    decode_seconds,
    head_flops,
    layer_flops,
    learning_seconds,
    prefill_seconds,
    scoring_seconds,
)
from tests.services.processes import ROOT

CONFIGS = ROOT / "configs"


def shape(name: str, **changed: int) -> ModelShape:
    found = shape_of(KNOWN_MODELS[f"Qwen/{name}"] | changed)
    assert found is not None
    return found


def test_the_formulas_reproduce_published_measurements() -> None:
    """The sources that rates.SOURCES names."""
    h100 = GPUS["h100"]
    sizes = {"hidden_size": 5_120, "intermediate_size": 17_408, "num_hidden_layers": 40, "num_attention_heads": 40}
    llama = {"model_type": "llama", "hidden_size": 4_096, "intermediate_size": 14_336, "num_hidden_layers": 32}
    llama_8b = shape_of({**llama, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256})
    assert llama_8b is not None
    assert decode_seconds(shape("Qwen3-8B"), h100, 4, 4 * 450, ASSUMED) == pytest.approx(0.0074, rel=0.2)
    prefill = 100 * prefill_seconds(shape("Qwen3-8B", **sizes), h100, 32_000, ASSUMED)
    assert prefill * ASSUMED.prefill / 386.8 == pytest.approx(0.33, abs=0.01)
    token = 3 * (layer_flops(llama_8b, 8_192) + head_flops(llama_8b, 8_192)) / 8_192
    assert 5_762 * token / (h100.tflops * 1e12) == pytest.approx(0.30, abs=0.01)
    assert 6_667 * token / (h100.tflops * 1e12) == pytest.approx(0.35, abs=0.01)


def test_seconds_by_hand() -> None:
    qwen, gpu = shape("Qwen3-1.7B"), GPU("mine", 80, 1_000, 100)
    linear = 2_048 * (2_048 + 2 * 1_024 + 2_048) + 3 * 2_048 * 6_144
    layers, head = 28 * (2 * linear * 10_000 + 2 * 2_048 * 10_000**2), 2 * 151_936 * 2_048 * 9_000
    whole = Efficiency(decode_bandwidth=1, decode_overhead_seconds=0, prefill=1, training=1)
    assert scoring_seconds(qwen, gpu, [1_000], 9_000, whole) == pytest.approx((layers + head) / 1e14)
    assert learning_seconds(qwen, gpu, 1_000, 9_000, whole, Passes()) == pytest.approx((4 * layers + 3 * head) / 1e14)
    kv, weights = 2 * 28 * 8 * 128 * 2, 2 * (qwen.parameters - 2_048)
    assert decode_seconds(qwen, gpu, 64, 64 * 5_000, whole) == pytest.approx((weights + kv * 64 * 5_000) / 1e12)


def test_a_mixture_reaches_a_smaller_share() -> None:
    mixture, dense = shape("Qwen3-30B-A3B-Thinking-2507"), shape("Qwen3-4B")
    assert (ASSUMED.forward(mixture), ASSUMED.forward(dense)) == (ASSUMED.mixture, ASSUMED.prefill)


def test_rates_are_measured_on_this_machine() -> None:
    gpu, efficiency, notes = measure(load_config(CONFIGS / "demo.toml"))
    assert (gpu.name, "There is no GPU here" in notes[-1]) == ("cpu", True)
    assert efficiency.decode_bandwidth == pytest.approx(1)
    assert efficiency.prefill == pytest.approx(1)
    assert efficiency.mixture == pytest.approx(ASSUMED.mixture / ASSUMED.prefill)
    assert min(gpu.bandwidth_gb, gpu.tflops, efficiency.training, efficiency.publish_bytes_per_second) > 0
    sources = {meaning: source for meaning, _, source in assumptions(efficiency)}
    assert sources["share of the bf16 FLOP/s that learning reaches"] == "measured on this machine"
    assert "assumed" in sources["share of the bf16 FLOP/s that scoring reaches, mixture of experts"]


def test_a_layer_has_the_sizes_that_the_formulas_count() -> None:
    small = replace(shape("Qwen3-30B-A3B-Thinking-2507"), hidden=64, intermediate=16, head_dim=8)
    layer = Layer(small, torch.device("cpu"), torch.float32)
    assert layer.shape.intermediate == 8 * 16
    with torch.no_grad():
        assert layer(layer.states(1, 12)).shape == (1, 12, 64)
        assert layer(layer.states(3, 1), layer.cache(3, 20)).shape == (3, 1, 64)
    router = small.experts * small.hidden
    assert sum(weight.numel() for weight in layer.weights.values()) == active_layer_parameters(small) - router


def test_several_configurations_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    files = [CONFIGS / "qwen3-4b-to-1.7b.toml", CONFIGS / "qwen3-30b-to-4b.toml"]
    plan_command.run(
        argparse.Namespace(
            config=files,
            gpu="H20",
            count=4,
            price=2.0,
            most=1,
            measure=False,
            overlay=None,
            lengths=None,
            set=["run.steps=10"],
        )
    )
    out = capsys.readouterr().out
    for expected in ("14.90", "48.76", "[resources]", "at 2 per GPU hour", "torchtitan", "Predicted"):
        assert expected in out
