"""Safetensors files written one tensor at a time and hashed on the way.

The safetensors library writes a file only from tensors that are all in memory, and the digest needs a second pass.
The format itself is small: the length of a JSON header, the header, the bytes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, Self

import torch

from calopd.rundir.digests import BlockDigest

DTYPE_NAMES: Final = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ALIGNMENT: Final = 8


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class TensorStream:
    """Tensors that are computed one at a time, in the order of their specs; they can be read once."""

    specs: Sequence[TensorSpec]
    tensors: Iterable[torch.Tensor]

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Self:
        specs = aligned(TensorSpec(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
        return cls(specs, (tensors[spec.name] for spec in specs))

    @property
    def bytes(self) -> int:
        return sum(spec.bytes for spec in self.specs)

    def drain(self) -> None:
        """Compute all tensors and drop them, to take part in their collectives."""
        for _ in self.tensors:
            pass


def aligned(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """The order of a file in which every tensor is aligned: wide data types first."""
    return sorted(specs, key=lambda spec: -spec.dtype.itemsize)


def write_tensors(file: Path, stream: TensorStream) -> str:
    """Write a safetensors file and return its digest."""
    with file.open("wb") as out, BlockDigest() as digest:
        for part in file_parts(stream):
            out.write(part)
            digest.update(part)
        return digest.hexdigest()


def file_parts(stream: TensorStream) -> Iterator[memoryview]:
    """The bytes of the file: the header, then every tensor."""
    yield memoryview(file_header(stream.specs))
    for spec, tensor in zip(stream.specs, stream.tensors, strict=True):
        assert (tensor.dtype, tuple(tensor.shape)) == (spec.dtype, spec.shape), spec
        if spec.bytes:
            yield tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def file_header(specs: Sequence[TensorSpec]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for spec in specs:
        end = start + spec.bytes
        entries[spec.name] = {
            "dtype": DTYPE_NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
