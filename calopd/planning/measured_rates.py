"""Rates of the machine at hand: one decoder layer of each model of a configuration, and files the size of a policy.

Every rate is the work that the formulas of `rates` count, divided by the seconds that it took: a plan made with it
predicts these measurements exactly. A layer of random weights takes the time of a trained one. A mixture of experts and
compiled layers are not measured; their proportion to a dense and to an uncompiled layer stays assumed.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch
from torch import Tensor
from torch.nn import functional

from calopd.config import Config
from calopd.models.devices import choose_device, choose_dtype, dtype_name
from calopd.planning.gpus import GIB, GPU, GPUS
from calopd.planning.model_shapes import ModelShape
from calopd.planning.rates import ASSUMED, BF16, Efficiency, active_bytes, layer_flops
from calopd.planning.splits import shapes
from calopd.rundir.digests import sha256

REPEATS = 5


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurements."""

    tokens: int
    """Of one sequence that is scored or learned from."""
    sequences: int
    """That are sampled at once."""
    cached: int
    """Tokens in the KV cache of each."""
    file_mib: int


ON_GPU, ON_CPU = Sizes(8_192, 64, 8_192, 1_024), Sizes(256, 8, 512, 64)


class Layer:
    """One decoder layer of a model's sizes with random weights; of a mixture, an MLP of the width a token passes."""

    def __init__(self, shape: ModelShape, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = replace(shape, layers=1, experts=0, experts_per_token=0, intermediate=shape.active_width)
        self.weights = {
            name: torch.randn(outputs, inputs, device=device, dtype=dtype).mul_(inputs**-0.5).requires_grad_()
            for name, (inputs, outputs) in self.shape.linear_sizes.items()
        }
        self.device, self.dtype = device, dtype

    def states(self, sequences: int, tokens: int) -> Tensor:
        return torch.randn(sequences, tokens, self.shape.hidden, device=self.device, dtype=self.dtype)

    def cache(self, sequences: int, tokens: int) -> tuple[Tensor, Tensor]:
        size = sequences, self.shape.kv_heads, tokens, self.shape.head_dim
        return torch.randn(size, device=self.device, dtype=self.dtype), torch.randn(
            size, device=self.device, dtype=self.dtype
        )

    def __call__(self, states: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """The layer without its norms; with a cache, one more token for each sequence."""
        q, k, v = (self._heads(states, name) for name in ("q_proj", "k_proj", "v_proj"))
        if cache is not None:
            k, v = cache
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
        states = states + self._linear(attended.transpose(1, 2).flatten(2), "o_proj")
        gated = functional.silu(self._linear(states, "gate_proj")) * self._linear(states, "up_proj")
        return states + self._linear(gated, "down_proj")

    def _linear(self, states: Tensor, name: str) -> Tensor:
        return functional.linear(states, self.weights[name])

    def _heads(self, states: Tensor, name: str) -> Tensor:
        return self._linear(states, name).unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)


def measure(config: Config) -> tuple[GPU, Efficiency, list[str]]:
    """The GPU of this machine or its CPU, the measured rates, and what was measured in words."""
    device = choose_device("auto")
    sizes = ON_GPU if device.type == "cuda" else ON_CPU
    student, teacher = shapes(config)
    dtype = choose_dtype("auto", device)
    learner, scorer = Layer(student, device, dtype), Layer(teacher, device, dtype)
    prefill, training = prefill_rate(scorer, sizes.tokens), training_rate(learner, sizes.tokens)
    decode = decode_rate(learner, sizes.sequences, sizes.cached)
    publish, load = file_rates(config.policies, sizes.file_mib, device)
    gpu = _this_gpu(device, bandwidth=decode, flops=prefill)
    efficiency = Efficiency(
        decode_bandwidth=decode / (gpu.bandwidth_gb * 1e9),
        prefill=prefill / (gpu.tflops * 1e12),
        mixture=prefill / (gpu.tflops * 1e12) * ASSUMED.mixture / ASSUMED.prefill,
        training=training / (gpu.tflops * 1e12),
        compiled=training / (gpu.tflops * 1e12) * ASSUMED.compiled / ASSUMED.training,
        publish_bytes_per_second=publish,
        load_bytes_per_second=load,
    )
    notes = [
        f"Measured on {_name(device)} in {dtype_name(dtype)}, one layer of each model: scoring {prefill / 1e12:.3g} "
        f"TFLOP/s ({sizes.tokens:,} tokens), learning {training / 1e12:.3g} TFLOP/s, sampling {decode / 1e9:.3g} GB/s "
        f"({sizes.sequences} sequences of {sizes.cached:,} tokens), a policy published at {publish / 1e9:.2g} and "
        f"loaded at {load / 1e9:.2g} GB/s. Communication of the ranks and vLLM's scheduling are not measured.",
    ]
    if device.type == "cpu":
        notes.append(
            "There is no GPU here: the plan is for processes that each have a machine like this one, at small sizes."
        )
    return gpu, efficiency, notes


def prefill_rate(layer: Layer, tokens: int) -> float:
    """FLOP/s of a forward pass."""
    states = layer.states(1, tokens)
    with torch.no_grad():
        return layer_flops(layer.shape, tokens) / _seconds(layer.device, lambda: layer(states))


def training_rate(layer: Layer, tokens: int) -> float:
    """FLOP/s of a forward and backward pass."""
    states = layer.states(1, tokens)

    def step() -> None:
        layer(states).sum().backward()  # type: ignore[no-untyped-call]

    return 3 * layer_flops(layer.shape, tokens) / _seconds(layer.device, step)


def decode_rate(layer: Layer, sequences: int, cached: int) -> float:
    """Bytes/s of one more token for each sequence, as the formula counts them: in bf16."""
    states, cache = layer.states(sequences, 1), layer.cache(sequences, cached)
    read = active_bytes(layer.shape, sequences) + layer.shape.kv_bytes(BF16) * sequences * cached
    with torch.no_grad():
        return read / _seconds(layer.device, lambda: layer(states, cache), rounds=10)


def file_rates(policies: Path, mib: int, device: torch.device) -> tuple[float, float]:
    """Bytes/s of publishing (copy, write, sync, hash) and loading (hash, read, copy) where policies are kept."""
    folder = next(parent for parent in (policies, *policies.absolute().parents) if parent.is_dir())
    weights = torch.randint(0, 255, (mib * 2**20,), dtype=torch.uint8, device=device)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".calopd-plan-") as file:
        start = time.perf_counter()
        file.write(weights.cpu().numpy().data)
        file.flush()
        os.fsync(file.fileno())
        sha256(Path(file.name))
        published = time.perf_counter()
        sha256(Path(file.name))
        torch.frombuffer(bytearray(Path(file.name).read_bytes()), dtype=torch.uint8).to(device)
        _wait(device)
        return len(weights) / (published - start), len(weights) / (time.perf_counter() - published)


def _seconds(device: torch.device, work: Callable[[], object], rounds: int = 1) -> float:
    """Median seconds of the work, after one that warms up."""
    found = []
    for _ in range(REPEATS + 1):
        _wait(device)
        start = time.perf_counter()
        for _ in range(rounds):
            work()
        _wait(device)
        found.append((time.perf_counter() - start) / rounds)
    return statistics.median(found[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"the CPU ({torch.get_num_threads()} threads)"


def _this_gpu(device: torch.device, *, bandwidth: float, flops: float) -> GPU:
    """The GPU of the table that this is, with its own memory; else one whose peaks are what was measured."""
    memory = float(psutil.virtual_memory().total)
    if device.type == "cuda":
        memory = float(torch.cuda.get_device_properties(device).total_memory)
        words = torch.cuda.get_device_name(device).lower().replace("-", " ").split()
        known = [gpu for gpu in GPUS.values() if gpu.name.partition("-")[0] in words]
        if known:
            return replace(min(known, key=lambda gpu: abs(gpu.memory_gib - memory / GIB)), memory_gib=memory / GIB)
    return GPU(device.type, memory / GIB, bandwidth / 1e9, flops / 1e12)
