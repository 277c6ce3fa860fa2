"""Seconds of the roles by a roofline: FLOPs or bytes divided by what a GPU reaches of its peak."""

import functools
from dataclasses import dataclass

from calopd.planning.gpus import GPU
from calopd.planning.model_shapes import ModelShape
from calopd.planning.passes import Passes

BF16 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of a GPU's peak that the roles reach, and the speed of passing policies on; `SOURCES` says why."""

    decode_bandwidth: float = 0.7
    """Share of the memory bandwidth while sampling."""
    decode_overhead_seconds: float = 0.002
    """Scheduling and sampling of one token for the whole batch."""
    prefill: float = 0.4
    """Share of the bf16 FLOP/s in the teacher's forward pass, and while a prompt is read."""
    mixture: float = 0.25
    """The same for a mixture of experts."""
    training: float = 0.3
    """Share of the bf16 FLOP/s in forward and backward passes of the learner, recomputation included."""
    compiled: float = 0.35
    """The same with learner.compile."""
    publish_bytes_per_second: float = 1.5e9
    """Gathering, writing and hashing of a policy."""
    load_bytes_per_second: float = 1.5e9
    """Verifying and loading of a policy by a rollout."""

    def forward(self, shape: ModelShape) -> float:
        """Share of the FLOP/s in a forward pass of this model."""
        return self.mixture if shape.experts else self.prefill

    def learning(self, passes: Passes) -> float:
        """Share of the FLOP/s in the passes of the learner."""
        return self.compiled if passes.compiled else self.training


ASSUMED = Efficiency()

_GPUSTACK = "https://github.com/gpustack/gpustack/blob/main/docs/performance-lab"
_TORCHTITAN = "https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md"
SOURCES: dict[str, str] = {
    "decode_bandwidth": "vLLM 0.11 takes 7.4 ms per token for Qwen3-8B in bf16 on one H100 with 4 requests; the "
    f"formula gives 8.6 ([GPUStack]({_GPUSTACK}/qwen3-8b/h100-latency.md))",
    "decode_overhead_seconds": "the same measurement, which the two have to explain together",
    "prefill": "vLLM 0.11 reads prompts of 32,000 tokens with Qwen3-14B on one H100 at 33 % of the peak by these "
    f"formulas ([GPUStack]({_GPUSTACK}/qwen3-14b/h100.md)); a teacher samples nothing beside it",
    "mixture": "vLLM 0.17 reads and writes 37,900 tokens/s with Qwen3.5-35B-A3B on one H200, 23 % of the peak for 3 B "
    f"active parameters ([GPUStack]({_GPUSTACK}/qwen3.5-35b-a3b/h200.md))",
    "training": "FSDP2 trains Llama 3.1 8B on 8 H100 of 500 W with 5,762 tokens/s per GPU, 30 % by these formulas "
    f"([torchtitan]({_TORCHTITAN})). Slower GPUs reach a larger share",
    "compiled": "the same measurement, compiled: 6,667 tokens/s per GPU",
    "publish_bytes_per_second": "an assumption: sha256 on one core and tmpfs allow about this much",
    "load_bytes_per_second": "an assumption, likewise",
}
"""Setting of `Efficiency` -> what its value rests on."""


@functools.lru_cache(maxsize=1_024)
def active_layer_parameters(shape: ModelShape) -> int:
    """Weights of a decoder layer that one token is multiplied with."""
    linear = sum(inputs * outputs for inputs, outputs in shape.linear_sizes.values())
    if shape.experts:
        linear += 3 * shape.hidden * shape.active_width + shape.experts * shape.hidden
    return linear


@functools.lru_cache(maxsize=65_536)
def layer_flops(shape: ModelShape, length: int) -> float:
    """FLOPs of all decoder layers for one sequence, the forward pass of causal attention included."""
    linear = 2 * active_layer_parameters(shape) * length
    return shape.layers * (linear + 2 * shape.attention_width * length**2)


def head_flops(shape: ModelShape, rows: int) -> float:
    return 2 * shape.embedding_parameters * rows


def scoring_seconds(shape: ModelShape, gpu: GPU, prompts: list[int], response: int, efficiency: Efficiency) -> float:
    """One teacher's time for one response under contexts with these prompt lengths."""
    flops = sum(layer_flops(shape, prompt + response) + head_flops(shape, response) for prompt in prompts)
    return flops / (gpu.tflops * 1e12 * efficiency.forward(shape))


def learning_flops(shape: ModelShape, prompt: int, response: int, passes: Passes = Passes()) -> float:  # noqa: B008
    """FLOPs of a trajectory's gradient: forward, backward (twice the forward) and recomputation of the layers."""
    tokens = prompt + response
    flops = (3 + passes.recomputes) * layer_flops(shape, tokens) + 3 * head_flops(shape, response)
    if not passes.trains_all:  # no product for the gradient of a weight
        flops -= shape.layers * 2 * active_layer_parameters(shape) * tokens + head_flops(shape, response)
    return flops


def learning_seconds(
    shape: ModelShape, gpu: GPU, prompt: int, response: int, efficiency: Efficiency, passes: Passes
) -> float:
    """One rank's time for the gradient of one trajectory."""
    return learning_flops(shape, prompt, response, passes) / (gpu.tflops * 1e12 * efficiency.learning(passes))


def forward_seconds(
    shape: ModelShape, gpu: GPU, prompt: int, response: int, efficiency: Efficiency, passes: Passes
) -> float:
    """One rank's time for a forward pass of one trajectory: of the reference, or for a plan that reads the student."""
    flops = layer_flops(shape, prompt + response) + head_flops(shape, response)
    return flops / (gpu.tflops * 1e12 * efficiency.learning(passes))


def optimizer_seconds(trained: float, gpu: GPU, ranks: int, efficiency: Efficiency) -> float:
    """Time of AdamW: it reads and writes masters and moments and reads gradients, 28 bytes per trained parameter."""
    return 28 * trained / ranks / (gpu.bandwidth_gb * 1e9 * efficiency.decode_bandwidth)


def decode_seconds(
    shape: ModelShape, gpu: GPU, sequences: int, cached_tokens: float, efficiency: Efficiency, gpus: int = 1
) -> float:
    """Time of one more token for each running sequence: weights and KV cache are read once, or FLOPs bound it."""
    weights = shape.layers * active_bytes(shape, sequences) + shape.embedding_parameters * BF16
    read = weights + shape.kv_bytes(BF16) * cached_tokens
    bandwidth = gpus * gpu.bandwidth_gb * 1e9 * efficiency.decode_bandwidth
    flops = sequences * (2 * shape.layers * active_layer_parameters(shape) + head_flops(shape, 1))
    compute = gpus * gpu.tflops * 1e12 * efficiency.forward(shape)
    return max(read / bandwidth, flops / compute) + efficiency.decode_overhead_seconds


def active_bytes(shape: ModelShape, sequences: int) -> float:
    """Bytes of a layer that a batch reads: of a mixture, the experts that any of its tokens chooses."""
    if not shape.experts:
        return shape.layer_parameters * BF16
    chosen = 1 - (1 - shape.experts_per_token / shape.experts) ** sequences
    attention = active_layer_parameters(shape) - 3 * shape.hidden * shape.active_width
    return (attention + chosen * shape.experts * 3 * shape.hidden * shape.intermediate) * BF16


def prefill_seconds(shape: ModelShape, gpu: GPU, tokens: int, efficiency: Efficiency, gpus: int = 1) -> float:
    """Time to read a prompt, or to recompute a preempted sequence."""
    return layer_flops(shape, tokens) / (gpus * gpu.tflops * 1e12 * efficiency.forward(shape))
