"""Products of the LM head with float32 results: bfloat16 inputs are multiplied as they are, and never rounded back.

A logit near 24 has steps of 0.125 in bfloat16. Log-probabilities of rounded logits are off by about the threshold above
which a deviation of the teacher counts.
"""

import torch
from torch import Tensor

from calopd.core.cpu_products import add_outer_product, product
from calopd.core.head_tiles import TILE


def project(hidden_TH: Tensor, weight_VH: Tensor, out_TV: Tensor) -> Tensor:
    """float32 logits, in `out_TV` or in memory of their own."""
    if hidden_TH.dtype == torch.float32:
        return product(hidden_TH, weight_VH.T, out_TV)
    if hidden_TH.is_cuda:
        return torch.mm(hidden_TH, weight_VH.T, out_dtype=torch.float32, out=out_TV)
    for weight, out in zip(weight_VH.split(TILE), out_TV.split(TILE, 1), strict=True):
        out.copy_(_product(hidden_TH, weight.T))
    return out_TV


def add_gradients(
    gradient_TV: Tensor, hidden_TH: Tensor, weight_VH: Tensor, grad_hidden_TH: Tensor, grad_weight_VH: Tensor | None
) -> None:
    """Add to the float32 gradients of hidden states and weight, from the float32 gradient of the logits."""
    if hidden_TH.dtype == torch.float32:
        grad_hidden_TH += product(gradient_TV, weight_VH)
        if grad_weight_VH is not None:
            add_outer_product(grad_weight_VH, gradient_TV, hidden_TH)
        return
    gradient = gradient_TV.to(hidden_TH.dtype)
    grad_hidden_TH += _product(gradient, weight_VH)
    if grad_weight_VH is not None:
        grad_weight_VH += _product(gradient.T, hidden_TH)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of two bfloat16 matrices, in float32."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()
