"""LoRA adapters in a state dict."""

from collections.abc import Mapping

import torch

ADAPTER = "default"
"""The name of the adapters in a state dict."""


def merge_adapters(weights: Mapping[str, torch.Tensor], scale: float) -> dict[str, torch.Tensor]:
    """W + scale * B A under the plain names of the model, from a state dict with adapters."""
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
