"""float32 products on a CPU, by oneDNN: it uses AVX-512 on every processor that has it.

torch multiplies with MKL, which does so on Intel's processors only. On an AMD processor with AVX-512, oneDNN is 2.2
times as fast. It compiles and keeps code for every shape, and the number of tokens differs from call to call: products
are cut into pieces of few sizes. What is left of them, and small products, stay with MKL.
"""

import platform
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from calopd.core.head_tiles import PIECES

LEAST = 2**14
"""Elements of a weight from which on oneDNN is faster."""
AVAILABLE = platform.machine() == "x86_64" and torch.backends.mkldnn.is_available()


def _pieces(tokens: int) -> Iterator[slice]:
    """Cut a number of tokens into as few of `PIECES` as possible, and the rest."""
    start = 0
    for size in PIECES:
        while tokens - start >= size:
            yield slice(start, start + size)
            start += size
    if start < tokens:
        yield slice(start, tokens)


def _suits_onednn(a: Tensor, b: Tensor, tokens: int, weight: int) -> bool:
    known = a.dtype == b.dtype == torch.float32 and a.device.type == b.device.type == "cpu"
    return AVAILABLE and known and tokens >= PIECES[-1] and weight >= LEAST


def _onednn(a_MK: Tensor, b_KN: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(a_MK, b_KN.T, None, "none", [], "")


def product(a_TK: Tensor, b_KN: Tensor, out_TN: Tensor | None = None) -> Tensor:
    """a @ b of T tokens, without a gradient; in `out_TN` or in memory of its own."""
    tokens = len(a_TK)
    if not _suits_onednn(a_TK, b_KN, tokens, b_KN.numel()):
        return torch.mm(a_TK, b_KN, out=out_TN)
    if tokens in PIECES:
        return _onednn(a_TK, b_KN)
    out = torch.empty(tokens, b_KN.shape[1]) if out_TN is None else out_TN
    for part in _pieces(tokens):
        rows = a_TK[part]
        if len(rows) in PIECES:
            out[part] = _onednn(rows, b_KN)
        else:
            torch.mm(rows, b_KN, out=out[part])
    return out


def add_outer_product(sum_MN: Tensor, a_TM: Tensor, b_TN: Tensor) -> None:
    """sum += a^T @ b, over T tokens, without a gradient."""
    if not _suits_onednn(a_TM, b_TN, len(a_TM), sum_MN.numel()):
        sum_MN.addmm_(a_TM.T, b_TN)
        return
    for part in _pieces(len(a_TM)):
        a_PM, b_PN = a_TM[part], b_TN[part]
        if len(a_PM) in PIECES:
            sum_MN += _onednn(a_PM.T, b_PN)
        else:
            sum_MN.addmm_(a_PM.T, b_PN)


class _Linear(torch.autograd.Function):
    """x @ weight^T."""

    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, weight_OI: Tensor) -> Tensor:
        ctx.save_for_backward(x_TI, weight_OI)
        return product(x_TI, weight_OI.T)

    @staticmethod
    def backward(ctx: Any, grad_TO: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        x_TI, weight_OI = ctx.saved_tensors
        wants_x, wants_weight = ctx.needs_input_grad
        grad_weight = torch.zeros_like(weight_OI) if wants_weight else None
        if grad_weight is not None:
            add_outer_product(grad_weight, grad_TO, x_TI)
        return product(grad_TO, weight_OI) if wants_x else None, grad_weight


def _forward(module: torch.nn.Linear, x: Tensor) -> Tensor:
    weight = module.weight
    tokens = x.numel() // x.shape[-1]
    if module.bias is not None or torch.compiler.is_compiling() or not _suits_onednn(x, weight, tokens, weight.numel()):
        return linear(x, weight, module.bias)
    out: Tensor = _Linear.apply(x.reshape(tokens, -1), weight)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], -1)


def use_cpu_products(model: torch.nn.Module) -> None:
    """Let the linear layers of `model` multiply by `product` wherever they are float32 on a CPU."""
    if not AVAILABLE:
        return
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.forward = MethodType(_forward, module)  # type: ignore[method-assign]
