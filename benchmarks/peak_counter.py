"""Counting of peak memory with fake tensors: code runs with shapes only, and every storage it allocates is counted."""

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter

from calopd.models import packing


class PeakCounter(TorchDispatchMode):
    """Counts the bytes of all fake storages that are alive, and the most that were alive at once.

    Values are unknown: a scalar that the code reads is 1 or True, and a selection by a mask selects everything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.phases: dict[str, int] = {}
        """Phase -> its own peak."""
        self.phase = ""
        self._alive: dict[int, tuple[weakref.ref, int, str]] = {}
        self._now = 0
        self._at_peak: list[tuple[str, int]] = []

    def largest(self) -> list[tuple[str, int, int]]:
        """Operator, bytes and number of the storages at the peak, largest sums first."""
        groups = Counter(self._at_peak).items()
        return sorted(((source, size, number) for (source, size), number in groups), key=lambda g: -g[1] * g[2])

    def count(self, tensor: torch.Tensor, source: str = "given") -> None:
        """Count the storage of a tensor, unless it is counted already."""
        storage = tensor.untyped_storage()
        if id(storage) not in self._alive:
            self._set(storage, source)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count a storage again after a change of its size, by which FSDP frees and allocates parameters."""
        source = self._alive[id(storage)][2] if id(storage) in self._alive else "resize_"
        self._set(storage, source)

    def _set(self, storage: torch.UntypedStorage, source: str) -> None:
        key, size = id(storage), storage.nbytes()
        before = self._alive[key][1] if key in self._alive else 0
        self._alive[key] = (weakref.ref(storage, lambda _: self._gone(key)), size, source)
        self._now += size - before
        self.phases[self.phase] = max(self.phases.get(self.phase, 0), self._now)
        if self._now > self.peak:
            if self._now > 1.005 * self.peak:
                self._at_peak = [(source, size) for _, size, source in self._alive.values()]
            self.peak = self._now

    def _gone(self, key: int) -> None:
        self._now -= self._alive.pop(key)[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(not issubclass(kind, (FakeTensor, torch.nn.Parameter)) and kind is not torch.Tensor for kind in types):
            return NotImplemented  # DTensor: counted when it has become a call on local tensors
        kwargs = kwargs or {}
        tensors = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
        if tensors and not any(isinstance(t, FakeTensor) for t in tensors):
            with _disable_current_modes():
                return func(*args, **kwargs)
        out = _assumed(func, args) if func in ASSUMED else None
        if out is None:
            out = func(*args, **kwargs)
        for tensor in tree_iter(out):
            if isinstance(tensor, FakeTensor):
                self.count(tensor, func.__name__)
        return out


aten = torch.ops.aten
ASSUMED = {aten._local_scalar_dense.default, aten.index.Tensor, aten.nonzero.default, aten.equal.default}


def _assumed(func: Any, args: Any) -> Any:
    """The result of a call that depends on values; None if this one does not."""
    tensor = args[0]
    if func is aten._local_scalar_dense.default:
        return tensor.dtype == torch.bool or (1.0 if tensor.dtype.is_floating_point else 1)
    if func is aten.equal.default:
        return True
    if func is aten.nonzero.default:
        return tensor.new_empty(tensor.numel(), tensor.ndim, dtype=torch.long)
    indices = args[1]
    if any(i is not None and i.dtype == torch.bool for i in indices):
        assert all(i is None or i.dtype == torch.bool for i in indices), "a mask beside other indices"
        return torch.empty_like(tensor)
    return None


@contextmanager
def fake_gpu(counter: PeakCounter) -> Iterator[None]:
    """Everything inside computes with fake tensors, on the code path of a GPU; `with counter:` inside it counts."""
    resize, has_kernel = torch.UntypedStorage.resize_, packing.has_kernel
    whole_shapes = ShardingPropagator._propagate_tensor_meta_non_cached

    def resize_and_count(storage: torch.UntypedStorage, size: int) -> Any:
        out = resize(storage, size)
        counter.resized(storage)
        return out

    def without_counting(*args: Any) -> Any:
        """DTensor finds the shapes of results with fake tensors of its own, which have the size of all ranks."""
        with _disable_current_modes():
            return whole_shapes(*args)

    with (
        mock.patch.object(torch.UntypedStorage, "resize_", resize_and_count),
        mock.patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", without_counting),
        mock.patch.object(FakeTensor, "is_cuda", True),
        mock.patch.object(packing, "has_kernel", lambda _, *others: has_kernel(torch.device("cuda"), *others)),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        yield


@contextmanager
def fake_world(size: int) -> Iterator[None]:
    """A process group of `size` ranks whose collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
