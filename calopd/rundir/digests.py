"""Digests of large files, computed by several threads: the sha256 of the sha256 of each block."""

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

BLOCK_BYTES = 16 << 20
THREADS = min(8, os.cpu_count() or 1)


class BlockDigest:
    """Hashes bytes in the background while the caller writes them. The digest is that of `file_digest`."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "digest")
        self._blocks: list[Future[bytes]] = []
        self._open: list[memoryview] = []
        self._free = BLOCK_BYTES

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def update(self, data: memoryview) -> None:
        """Add bytes, which must not change until `hexdigest` has returned."""
        while len(data):
            part, data = data[: self._free], data[self._free :]
            self._open.append(part)
            self._free -= len(part)
            if not self._free:
                self._close()

    def _close(self) -> None:
        self._blocks.append(self._pool.submit(_sha256_of, self._open))
        self._open, self._free = [], BLOCK_BYTES
        if len(self._blocks) > 2 * THREADS:
            self._blocks[-2 * THREADS].result()  # bounds the bytes that wait to be hashed

    def hexdigest(self) -> str:
        """Return the digest of all bytes; nothing may be added afterwards."""
        if self._open:
            self._close()
        return _combined(block.result() for block in self._blocks)


def sha256(file: Path) -> str:
    """Return the plain sha256 of a file, as sha256sum prints it."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def file_digest(file: Path) -> str:
    """Return the digest of a file's content."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(THREADS, "digest") as pool:
            offsets = range(0, os.fstat(descriptor).st_size, BLOCK_BYTES)
            return _combined(pool.map(lambda offset: _sha256_at(descriptor, offset), offsets))
    finally:
        os.close(descriptor)


def _combined(blocks: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(blocks)).hexdigest()


def _sha256_of(parts: list[memoryview]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _sha256_at(descriptor: int, offset: int) -> bytes:
    digest, end = hashlib.sha256(), offset + BLOCK_BYTES
    while offset < end and (part := os.pread(descriptor, min(1 << 20, end - offset), offset)):
        digest.update(part)
        offset += len(part)
    return digest.digest()
