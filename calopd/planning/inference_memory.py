"""Peak memory of the roles that only run forward passes: teacher (torch and vLLM) and rollout (vLLM)."""

from dataclasses import dataclass

from calopd.core.head_tiles import tile_shape
from calopd.planning.gpus import GIB
from calopd.planning.memory_terms import Memory, largest
from calopd.planning.model_shapes import ModelShape

CUDA_GRAPHS_GIB = 1.0
"""CUDA graphs and compiled kernels of vLLM."""
SAMPLER_COPIES = 6
"""float32 numbers of size [sequences, V] that vLLM's sampler holds at once; sorting for top-p needs most."""
EXPERT_COPIES = 4
"""Copies of all tokens of all their experts at once, in a mixture: gathered twice, output, weighted output."""
VLLM_SEQUENCES = 1_024
"""Sequences that vLLM admits by default: it prepares for as many rows of logits."""


def forward_activations(shape: ModelShape, tokens: int, compute: int) -> float:
    """Activations of a layer in inference: embedding, residuals, norm; and gate, up, product, or copies for experts."""
    mlp = EXPERT_COPIES * shape.experts_per_token * shape.hidden if shape.experts else 3 * shape.intermediate
    return tokens * compute * (4 * shape.hidden + mlp)


def torch_teacher_memory(
    shape: ModelShape, *, tokens: int, compute: int, tile: tuple[int, int] = (0, 0), entropy: bool = False
) -> Memory:
    """Whole model on one GPU; the LM head in tiles of rows x vocabulary."""
    rows, width = (given or default for given, default in zip(tile, tile_shape(on_cuda=True), strict=True))
    rows, width = min(rows, tokens), min(width, shape.vocabulary)
    weights = {"weights": shape.weight_bytes(compute)}
    layers = Memory(weights | {"activations": forward_activations(shape, tokens, compute)})
    head = Memory(
        weights
        | {
            "activations": 2 * tokens * shape.hidden * compute,
            "logits": 4 * rows * (width * (2 if entropy else 1) + 3 * shape.hidden),
        }
    )
    return largest((layers, head))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWork:
    """The configuration of a vLLM engine."""

    gpus: int
    """GPUs that the model is split over."""
    tokens: int
    """Tokens of one step of the engine."""
    longest: int
    """Longest sequence: the KV cache must hold at least one."""
    logits_rows: int
    """Rows of logits that are held at once."""


def vllm_fixed_memory(shape: ModelShape, work: EngineWork, compute: int) -> Memory:
    """All that a vLLM engine needs on each GPU besides the KV cache."""
    return Memory(
        {
            "weights": shape.weight_bytes(compute) / work.gpus,
            "activations": forward_activations(shape, work.tokens, compute) / work.gpus,
            "logits": SAMPLER_COPIES * 4 * work.logits_rows * shape.vocabulary / work.gpus,
            "CUDA graphs": CUDA_GRAPHS_GIB * GIB,
        }
    )


def token_bytes(shape: ModelShape, work: EngineWork, compute: int) -> float:
    """KV cache of one token, on each GPU; a KV head is never split."""
    return shape.kv_bytes(compute) / min(work.gpus, shape.kv_heads)


def vllm_memory(shape: ModelShape, work: EngineWork, compute: int) -> Memory:
    """The least that an engine starts with: everything fixed, and the KV cache of one longest sequence."""
    fixed = vllm_fixed_memory(shape, work, compute)
    return Memory({**fixed.terms, "KV cache of one sequence": work.longest * token_bytes(shape, work, compute)})


def cached_tokens(shape: ModelShape, work: EngineWork, compute: int, share_bytes: float) -> int:
    """Tokens that the KV cache holds if the engine may use `share_bytes` of each GPU."""
    left = share_bytes - vllm_fixed_memory(shape, work, compute).bytes
    return max(0, int(left // token_bytes(shape, work, compute)))
