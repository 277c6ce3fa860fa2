"""Peak memory of a learner rank: FSDP2, activations of one layer at a time, the LM head in chunks."""

from dataclasses import dataclass

from calopd.config.sections import LearnerSection
from calopd.core.head_tiles import TILE
from calopd.planning.memory_terms import Memory, dtype_bytes, largest
from calopd.planning.model_shapes import ModelShape

MASTER, GRADIENT, MOMENTS = 4, 4, 8
"""Bytes per trained parameter: float32 weight, gradient, and AdamW's two moments."""
REDUCED = 4
"""Bytes per parameter of a gradient on its way to the other ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerWork:
    """The computation of one rank."""

    ranks: int
    """Ranks that the student is sharded over; replicas of these shards on other nodes (HSDP) change nothing."""
    tokens: int
    """Tokens of one micro-batch; the LM head works on nearly all of them."""
    reference: bool = False
    """Whether the method scores with the initial student."""


def adapter_parameters(shape: ModelShape, settings: LearnerSection) -> int:
    """Parameters of the LoRA adapters of one layer."""
    sizes = shape.linear_sizes
    if settings.lora_targets != "all-linear":
        sizes = {name: size for name, size in sizes.items() if name in settings.lora_targets}
    return settings.lora_rank * sum(inputs + outputs for inputs, outputs in sizes.values())


def trained_parameters(shape: ModelShape, settings: LearnerSection) -> int:
    """Parameters that have gradients: all of them, or those of the adapters."""
    return shape.layers * adapter_parameters(shape, settings) if settings.lora_rank else shape.parameters


def learner_memory(shape: ModelShape, settings: LearnerSection, work: LearnerWork) -> Memory:
    """The largest of the moments that can be the peak."""
    moments = (_in_head, _in_layer, _at_end)
    state = _state(shape, settings, work)
    return largest(Memory(state | moment(shape, settings, work)) for moment in moments)


def _state(shape: ModelShape, settings: LearnerSection, work: LearnerWork) -> dict[str, float]:
    """Memory that a step never frees after its first micro-batch: shards, and the gathered embedding and LM head."""
    compute = dtype_bytes(settings.compute_dtype)
    gathered = {"gathered embedding and head": float(shape.root_parameters * compute)}
    if settings.offload_optimizer:
        # The shard of a layer passes through the GPU before it is gathered.
        frozen = compute if settings.lora_rank else MASTER
        return gathered | {"shards in transit": frozen * shape.layer_parameters / work.ranks}
    trained, frozen = trained_parameters(shape, settings), 0
    if settings.lora_rank or work.reference:
        frozen = shape.parameters
    return gathered | {
        "trained weights": trained * MASTER / work.ranks,
        "frozen weights": frozen * compute / work.ranks,
        "gradients": trained * GRADIENT / work.ranks,
        "optimizer state": trained * MOMENTS / work.ranks,
    }


def _in_head(shape: ModelShape, settings: LearnerSection, work: LearnerWork) -> dict[str, float]:
    """The end of the forward pass: every layer has kept its input, and the head forms its gradient in float32."""
    compute, trains_head = dtype_bytes(settings.compute_dtype), not settings.lora_rank
    states, rows = work.tokens * shape.hidden, min(settings.chunk, work.tokens)
    # A tile of the logits' gradient and its two products; or later, the head's gradient once more.
    tile = min(TILE, shape.vocabulary)
    product = rows * tile * compute + 4 * shape.hidden * (rows + tile * trains_head)
    return {
        "activations between layers": _held(shape, settings, work.tokens),
        "last norm": states * (4 + 2 * compute),
        "logits": 4.0 * rows * (shape.vocabulary + tile),
        "gradient of the hidden states": states * compute,
        "gradient of the head": 4.0 * shape.embedding_parameters * trains_head,
        "products of the head": max(product, shape.embedding_parameters * compute * trains_head),
    }


def _in_layer(shape: ModelShape, settings: LearnerSection, work: LearnerWork) -> dict[str, float]:
    """The backward pass of a layer, in its MLP, while the gradients of the layer after it are reduced."""
    compute, trains_all = dtype_bytes(settings.compute_dtype), not settings.lora_rank
    recomputed = _saved(shape, work.tokens, compute) if settings.recompute_activations else 0.0
    flowing = work.tokens * compute * (2 * shape.active_width + shape.hidden)
    trained = shape.layer_parameters if trains_all else adapter_parameters(shape, settings)
    largest_weight = shape.hidden * shape.intermediate * compute if trains_all else 0
    return {
        "activations between layers": _held(shape, settings, work.tokens),
        "gathered layers": float(shape.layer_parameters * compute),
        "activations of one layer": recomputed + flowing,
        "gradients in transit": float(trained * REDUCED + largest_weight),
        "gradient of the head": float(shape.embedding_parameters * compute * trains_all),
    }


def _at_end(shape: ModelShape, settings: LearnerSection, work: LearnerWork) -> dict[str, float]:
    """The end of the backward pass: the gradients of embedding and LM head are reduced."""
    compute = dtype_bytes(settings.compute_dtype)
    trained = 0 if settings.lora_rank else shape.root_parameters
    return {
        "activations of one layer": float(work.tokens * shape.hidden * compute),
        "gathered layers": float(shape.layer_parameters * compute),
        "gradients in transit": trained * (compute + REDUCED) + trained * REDUCED / work.ranks,
    }


def stored_activations(shape: ModelShape, dtype: str) -> float:
    """Bytes of the activations of all layers per token, if none is recomputed."""
    return shape.layers * _saved(shape, 1, dtype_bytes(dtype))


def _held(shape: ModelShape, settings: LearnerSection, tokens: int) -> float:
    """Activations that all layers keep for the backward pass: their inputs, or everything."""
    compute = dtype_bytes(settings.compute_dtype)
    if settings.recompute_activations:
        return float(shape.layers * tokens * shape.hidden * compute)
    return shape.layers * _saved(shape, tokens, compute)


def _saved(shape: ModelShape, tokens: int, compute: int) -> float:
    """Activations that autograd keeps of one layer; a norm keeps its input in float32 and its quotient."""
    norm = 4 + compute
    heads = shape.attention_width + shape.kv_width
    per_token = 2 * (norm + compute) * shape.hidden  # the two norms and their outputs
    per_token += (norm if shape.qk_norm else 0) * heads + compute * heads  # norms of queries and keys; after rotation
    per_token += compute * (shape.kv_width + shape.attention_width)  # values, output of attention
    per_token += compute * 4 * shape.active_width  # gate, up, silu, product
    return float(tokens * per_token)
