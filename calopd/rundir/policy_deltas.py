"""The difference between two policies: the bitwise XOR of the 16-bit words that changed.

An optimizer step changes few of the values of a policy in bfloat16: most updates are smaller than the distance to the
next value. A delta file is a sequence of records, each of which changes one piece of the policy's file:

    offset, size   the piece, in bytes of the policy's file
    changed        its changed words; WHOLE = the piece itself follows, because most of it changed
    length         bytes that follow: the gaps between changed words (uint32) and their XOR (uint16), the first bytes of
                   all of them, then the second bytes and so on, compressed with zlib

Neighbouring gaps and XORs differ in their lowest byte only, so that the other bytes compress to almost nothing.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np

from calopd.core.errors import PolicyError

PIECE_BYTES: Final = 16 << 20
"""Largest piece of a record. It must be even."""
WHOLE: Final = 2**32 - 1
DENSE_SHARE: Final = 0.125
"""Share of changed words above which a piece is stored whole: coding it would take longer and save little."""

_RECORD: Final = struct.Struct("<QIII")
_WORD, _GAP = np.dtype("<u2"), np.dtype("<u4")


def encode_piece(offset: int, old: np.ndarray, new: np.ndarray) -> bytes:
    """The record that turns `old` into `new`, two arrays of bytes; empty if they are equal."""
    assert len(old) == len(new) <= PIECE_BYTES
    if len(new) % _WORD.itemsize:  # bytes or booleans, which no policy has many of
        return b"" if np.array_equal(old, new) else _record(offset, len(new), WHOLE, new.tobytes())
    difference = old.view(_WORD) ^ new.view(_WORD)
    changed = np.flatnonzero(difference != 0)  # much faster for booleans
    if not len(changed):
        return b""
    if len(changed) > DENSE_SHARE * len(difference):
        return _record(offset, len(new), WHOLE, new.tobytes())
    gaps = np.diff(changed, prepend=-1).astype(_GAP)
    planes = _planes(gaps) + _planes(difference[changed])
    return _record(offset, len(new), len(changed), _compressed(planes))


def _compressed(planes: bytes) -> bytes:
    # Runs only: gaps have no other repetitions, and the search for them takes longer and finds less.
    compress = zlib.compressobj(1, strategy=zlib.Z_RLE)
    return compress.compress(planes) + compress.flush()


def _record(offset: int, size: int, changed: int, payload: bytes) -> bytes:
    return _RECORD.pack(offset, size, changed, len(payload)) + payload


def _planes(values: np.ndarray) -> bytes:
    """The first bytes of all values, then the second bytes, and so on."""
    return np.ascontiguousarray(values.view(np.uint8).reshape(len(values), -1).T).tobytes()


def _from_planes(raw: bytes, dtype: np.dtype) -> np.ndarray:
    planes = np.frombuffer(raw, np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(planes.T).reshape(-1).view(dtype)


def apply_delta(target: np.ndarray, delta: bytes) -> None:
    """Change `target`, the bytes of the base's file, into those of the policy, in place."""
    for record in _records(memoryview(delta)):
        _apply_record(target, *record)


def _records(delta: memoryview) -> Iterator[tuple[int, int, int, memoryview]]:
    """Offset, size, changed words and payload of each record."""
    place = 0
    while place < len(delta):
        if len(delta) - place < _RECORD.size:
            raise PolicyError("a delta ends within a record")
        offset, size, changed, length = _RECORD.unpack_from(delta, place)
        place += _RECORD.size
        if len(delta) - place < length:
            raise PolicyError("a delta ends within a record")
        yield offset, size, changed, delta[place : place + length]
        place += length


def _apply_record(target: np.ndarray, offset: int, size: int, changed: int, payload: memoryview) -> None:
    if offset + size > len(target) or size > PIECE_BYTES:
        raise PolicyError(f"a delta changes bytes {offset} to {offset + size} of a policy of {len(target)} bytes")
    piece = target[offset : offset + size]
    if changed == WHOLE:
        if len(payload) != size:
            raise PolicyError(f"a delta has {len(payload)} bytes for a piece of {size}")
        piece[:] = np.frombuffer(payload, np.uint8)
        return
    gaps, difference = _decoded(payload, changed)
    words = np.cumsum(gaps, dtype=np.int64) - 1
    if size % _WORD.itemsize or not gaps.all() or words[-1] >= size // _WORD.itemsize:
        raise PolicyError("a delta changes words outside of its piece")
    piece.view(_WORD)[words] ^= difference


def _decoded(payload: memoryview, changed: int) -> tuple[np.ndarray, np.ndarray]:
    expected = changed * (_GAP.itemsize + _WORD.itemsize)
    decompress = zlib.decompressobj()
    try:
        planes = decompress.decompress(payload, expected + 1)  # bounded, whatever the payload claims
    except zlib.error as error:
        raise PolicyError(f"a delta cannot be decompressed: {error}") from None
    if not changed or len(planes) != expected:
        raise PolicyError(f"a delta has {len(planes)} bytes for {changed} words, expected {expected}")
    cut = changed * _GAP.itemsize
    return _from_planes(planes[:cut], _GAP), _from_planes(planes[cut:], _WORD)
