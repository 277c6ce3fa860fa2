"""The shape of a causal language model from its config.json: parameters, and bytes of the KV cache."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calopd.planning.known_models import KNOWN_MODELS

SUPPORTED = {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe"}
"""`model_type` of the architectures whose layers are counted here."""
QUANTISED_BITS = {"fp8": 8, "awq": 4, "gptq": 4, "compressed-tensors": 8}
"""`quant_method` -> bits of a weight, unless the file says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder with grouped-query attention and a gated MLP or a mixture of such MLPs."""

    hidden: int
    intermediate: int
    """Width of a dense MLP, or of one expert."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    """Whether the LM head is the embedding."""
    experts: int = 0
    """Experts of a layer; 0 = a dense MLP."""
    experts_per_token: int = 0
    qk_norm: bool = False
    qkv_bias: bool = False
    weight_bits: int | None = None
    """Bits of a quantised weight; None = the data type of the settings."""

    @property
    def attention_width(self) -> int:
        """Width of the queries, and of the output of attention before its projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def active_width(self) -> int:
        """Width of the MLPs that one token passes through."""
        return self.intermediate * (self.experts_per_token or 1)

    @property
    def linear_sizes(self) -> dict[str, tuple[int, int]]:
        """Name of each linear layer of a decoder layer -> (inputs, outputs); of a mixture, attention only."""
        sizes = {
            "q_proj": (self.hidden, self.attention_width),
            "k_proj": (self.hidden, self.kv_width),
            "v_proj": (self.hidden, self.kv_width),
            "o_proj": (self.attention_width, self.hidden),
        }
        if not self.experts:
            sizes |= dict.fromkeys(("gate_proj", "up_proj"), (self.hidden, self.intermediate))
            sizes["down_proj"] = (self.intermediate, self.hidden)
        return sizes

    @property
    def layer_parameters(self) -> int:
        """Parameters of one decoder layer."""
        linear = sum(inputs * outputs for inputs, outputs in self.linear_sizes.values())
        if self.experts:
            linear += self.experts * (3 * self.hidden * self.intermediate + self.hidden)
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        bias = self.attention_width + 2 * self.kv_width if self.qkv_bias else 0
        return linear + norms + bias

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, which are those of the LM head too if it is tied."""
        return self.vocabulary * self.hidden

    @property
    def root_parameters(self) -> int:
        """Parameters outside the decoder layers: embedding, LM head, last norm."""
        return self.embedding_parameters * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.root_parameters

    def weight_bytes(self, dtype_bytes: int) -> float:
        """Bytes of the loaded weights; embedding and LM head of a quantised model keep the data type."""
        if self.weight_bits is None:
            return self.parameters * dtype_bytes
        return self.layers * self.layer_parameters * self.weight_bits / 8 + self.root_parameters * dtype_bytes

    def kv_bytes(self, dtype_bytes: int) -> int:
        """Bytes of the KV cache of one token."""
        return 2 * self.layers * self.kv_width * dtype_bytes


def shape_of(values: Mapping[str, Any]) -> ModelShape | None:
    """The shape of a config.json; None for an architecture that is not supported."""
    kind = values.get("model_type")
    if kind not in SUPPORTED:
        return None
    heads = values["num_attention_heads"]
    mixture = kind == "qwen3_moe"
    quantised = values.get("quantization_config") or {}
    method = quantised.get("quant_method")
    bits = quantised.get("bits") or QUANTISED_BITS.get(method) if method else None
    return ModelShape(
        hidden=values["hidden_size"],
        intermediate=values["moe_intermediate_size" if mixture else "intermediate_size"],
        layers=values["num_hidden_layers"],
        heads=heads,
        kv_heads=values.get("num_key_value_heads") or heads,
        head_dim=values.get("head_dim") or values["hidden_size"] // heads,
        vocabulary=values["vocab_size"],
        tied=values.get("tie_word_embeddings", False),
        experts=values["num_experts"] if mixture else 0,
        experts_per_token=values["num_experts_per_tok"] if mixture else 0,
        qk_norm=kind.startswith("qwen3"),
        qkv_bias=kind == "qwen2",
        weight_bits=bits,
    )


def model_values(path: str) -> Mapping[str, Any] | None:
    """The config.json of a model directory, of the hub's cache or of a well-known model; None if there is none."""
    file = Path(path) / "config.json"
    if not file.is_file():
        if path in KNOWN_MODELS:
            return KNOWN_MODELS[path]
        cached = _cached(path)
        if cached is None:
            return None
        file = cached
    values: Mapping[str, Any] = json.loads(file.read_text())
    return values


def load_shape(path: str) -> ModelShape | None:
    """The shape of the model at `path`, a directory or a hub id; None if it is not known on this machine."""
    values = model_values(path)
    return None if values is None else shape_of(values)


def _cached(path: str) -> Path | None:
    """config.json of a hub id, if it has been downloaded."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(path, "config.json")
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
