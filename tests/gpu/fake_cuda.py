"""Fake tensors on the pretended GPU: real classes run; of what is on the GPU, shapes, types and devices are computed.

Runs in the CUDA environment only (`tests/gpu/environments.py`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
COMPOSITE = "CompositeImplicitAutograd"


@dataclass(frozen=True)
class Call:
    """An operator that ran."""

    name: str
    inputs: list[tuple[tuple[int, ...], str]]
    """Shape and type of each tensor given."""
    outputs: list[tuple[tuple[int, ...], str]]


@dataclass
class Calls(TorchDispatchMode):
    """Records every operator, computes on the CPU for real, and answers those that ask a GPU's tensor for values.

    Copies to the host are zeros; a mask or `nonzero` selects every row; a condition is true, except `any(...)`.
    """

    seen: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._false: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "aten" and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE):
            with self:  # in inference mode composite operators arrive whole
                return func.decompose(*args, **kwargs)
        out = self._answer(func, args, kwargs)
        self.seen.append(Call(str(func), _described((args, kwargs)), _described(out)))
        return out

    def _answer(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        first = args[0] if args else None
        if not _touches_gpu(args, kwargs):
            with _disable_current_modes():
                return func(*args, **kwargs)
        if func is aten._local_scalar_dense.default and first.is_cuda:
            return first.dtype.is_floating_point * 1.0 if first.dtype != torch.bool else id(first) not in self._false
        if (
            func is aten._to_copy.default
            and first.is_cuda
            and torch.device(kwargs.get("device") or "cuda").type == "cpu"
        ):
            with _disable_current_modes():
                return torch.zeros(first.shape, dtype=kwargs.get("dtype") or first.dtype)
        if func is aten.nonzero.default:
            return torch.zeros(first.shape[0], first.ndim, dtype=torch.long, device=first.device)
        if func is aten.index.Tensor:
            args = (first, [_rows_of(index) for index in args[1]])
        out = func(*args, **kwargs)
        if func in (aten.any.default, aten.any.dim):
            self._false.add(id(out))
            self._kept = [*getattr(self, "_kept", []), out]  # an id is unique while its object lives
        return out

    def named(self, part: str) -> list[Call]:
        return [call for call in self.seen if part in call.name]


def _touches_gpu(args: Any, kwargs: dict[str, Any]) -> bool:
    fake = any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs)))
    return fake or torch.device(kwargs.get("device") or "cpu").type == "cuda"


def _rows_of(index: Tensor | None) -> Tensor | None:
    if index is not None and index.dtype == torch.bool:
        return torch.arange(index.numel(), device=index.device)
    return index


def _described(values: Any) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in tree_leaves(values) if isinstance(t, Tensor)]


def _replace_tensors(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """In place of `Module._apply`, which cannot swap fake parameters that something else refers to."""
    for child in module.children() if recurse else ():
        _replace_tensors(child, change)
    with torch.no_grad():
        for name, parameter in module._parameters.items():
            if parameter is not None and (changed := change(parameter)) is not parameter:
                module._parameters[name] = nn.Parameter(changed, parameter.requires_grad)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else change(buffer)
    return module


@contextmanager
def fake_cuda() -> Iterator[Calls]:
    """Every tensor made on the GPU inside is fake; the calls that ran."""
    with (
        patch.object(nn.Module, "_apply", _replace_tensors),
        FakeTensorMode(allow_non_fake_inputs=True),
        Calls() as calls,
    ):
        yield calls
