"""LoRA adapters in a state dict."""

from collections.abc import Mapping

import torch

ADAPTER = "default"
"""Name of the adapter in the state dict keys."""


def merge_adapters(weights: Mapping[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """Merge the adapters of a state dict into its weights, W + scale * B A, under the names of the base model."""
    out = {}
    for name, tensor in weights.items():
        if "lora_" in name:
            continue
        if ".base_layer." in name and name.endswith(".weight"):
            layer = name.removesuffix(".base_layer.weight")
            down, up = (weights[f"{layer}.lora_{side}.{ADAPTER}.weight"] for side in "AB")
            tensor = tensor + scale * (up @ down)
        out[name.replace(".base_layer.", ".")] = tensor
    return out
