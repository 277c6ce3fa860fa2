"""Products of the LM head with float32 results: bfloat16 inputs are multiplied as they are, and never rounded back.

A logit near 24 has steps of 0.125 in bfloat16. Log-probabilities of rounded logits are off by about the threshold above
which a deviation of the teacher counts.
"""

import torch
from torch import Tensor

TILE = 16_384
"""Vocabulary entries that are multiplied at once where the result, or a copy of the input, would need memory."""


def project(hidden_TH: Tensor, weight_VH: Tensor, out_TV: Tensor) -> Tensor:
    """float32 logits, in `out_TV`."""
    if hidden_TH.dtype == torch.float32:
        return torch.mm(hidden_TH, weight_VH.T, out=out_TV)
    if hidden_TH.is_cuda:
        return torch.mm(hidden_TH, weight_VH.T, out_dtype=torch.float32, out=out_TV)
    for weight, out in zip(weight_VH.split(TILE), out_TV.split(TILE, 1), strict=True):
        out.copy_(_product(hidden_TH, weight.T))
    return out_TV


def add_gradients(
    gradient_TV: Tensor, hidden_TH: Tensor, weight_VH: Tensor, grad_hidden_TH: Tensor, grad_weight_VH: Tensor | None
) -> None:
    """Set the gradient of the hidden states, and add to that of the weight, from the float32 gradient of the logits."""
    if hidden_TH.dtype == torch.float32:
        torch.mm(gradient_TV, weight_VH, out=grad_hidden_TH)
        if grad_weight_VH is not None:
            grad_weight_VH.addmm_(gradient_TV.T, hidden_TH)
        return
    total_TH = torch.zeros(hidden_TH.shape, device=hidden_TH.device)
    for first in range(0, len(weight_VH), TILE):
        tile = slice(first, first + TILE)
        gradient = gradient_TV[:, tile].to(hidden_TH.dtype)
        total_TH += _product(gradient, weight_VH[tile])
        if grad_weight_VH is not None:
            grad_weight_VH[tile] += _product(gradient.T, hidden_TH)
    grad_hidden_TH.copy_(total_TH)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of two bfloat16 matrices, in float32."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()
