"""LoRA adapters in a state dict."""

from collections.abc import Mapping

import torch

ADAPTER = "default"
"""Name of the adapter in the state dict keys."""
BASE_LAYER = ".base_layer."
"""Part of the names of the weights that an adapter changes."""


def is_adapter(name: str) -> bool:
    return "lora_" in name


def adapters_of(name: str) -> tuple[str, str] | None:
    """The names of A and B that belong to a weight; None if it has no adapter."""
    if BASE_LAYER not in name or not name.endswith(".weight"):
        return None
    layer = name.removesuffix(f"{BASE_LAYER}weight")
    return f"{layer}.lora_A.{ADAPTER}.weight", f"{layer}.lora_B.{ADAPTER}.weight"


def merge(weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float) -> torch.Tensor:
    """W + scale * B A in float32: a frozen W may be bfloat16."""
    return weight.float() + scale * (up.float() @ down.float())


def merge_adapters(weights: Mapping[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """Merge the adapters of a state dict into its weights, under the names of the base model."""
    out = {}
    for name, tensor in weights.items():
        if is_adapter(name):
            continue
        if (pair := adapters_of(name)) is not None:
            down, up = (weights[adapter] for adapter in pair)
            tensor = merge(tensor, down, up, scale)
        out[name.replace(BASE_LAYER, ".")] = tensor
    return out
