"""The learner's side of policies in files: deltas to the last policy, and a snapshot every n versions."""

import logging
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from calopd.rundir.digests import THREADS, BlockDigest
from calopd.rundir.files import atomic_folder
from calopd.rundir.policies import DELTA, WEIGHTS, Manifest, finish_snapshot, policy_dir, publish_policy, write_manifest
from calopd.rundir.policy_deltas import PIECE_BYTES, encode_piece
from calopd.rundir.policy_transport import Published
from calopd.rundir.tensor_files import TensorStream, file_header, file_parts

log = logging.getLogger(__name__)

CHAIN_SHARE: Final = 0.5
"""Bytes of all deltas since a snapshot, as a share of the snapshot: beyond it a new snapshot costs less."""


@dataclass(frozen=True, slots=True)
class _Last:
    """The policy that was published last; its bytes are in memory."""

    version: int
    sha256: str
    header: bytes
    deltas: int
    """Deltas since the snapshot."""
    delta_bytes: int


class FilePublisher:
    """Keeps the last policy in memory, as the bytes of its file, and writes what changed.

    With `snapshot_every` = 1 every policy is a snapshot, and nothing is kept. The first policy of a process is one too,
    and so is one whose tensors differ in name, shape or type from the last, or that changed too much.
    """

    def __init__(self, policies: Path, run: str, snapshot_every: int) -> None:
        self._policies, self._run, self._every = policies, run, snapshot_every
        self._bytes = np.empty(0, np.uint8)
        self._last: _Last | None = None

    def publish(self, version: int, weights: TensorStream) -> Published:
        """Write a policy as a delta or a snapshot."""
        header, last = file_header(weights.specs), self._last
        size = len(header) + weights.bytes
        if self._every == 1:
            return Published(publish_policy(self._policies, version, weights, self._run), size, is_delta=False)
        self._last = None  # until the bytes in memory are those of the new policy
        limit = 0.0
        if last is not None and last.version < version and last.header == header and last.deltas + 1 < self._every:
            limit = CHAIN_SHARE * size - last.delta_bytes
        elif len(self._bytes) != size:
            self._bytes = np.empty(size, np.uint8)
        sha256, records = self._replace(weights, limit)
        if last is None or records is None:
            self._write_snapshot(version, sha256)
            self._last = _Last(version, sha256, header, 0, 0)
            return Published(sha256, size, is_delta=False)
        written = self._write_delta(version, sha256, last, records)
        self._last = _Last(version, sha256, header, last.deltas + 1, last.delta_bytes + written)
        return Published(sha256, written, is_delta=True)

    def publish_whole(self, version: int) -> bool:
        """Write the last policy again, as a snapshot; False if it is another one or nothing is kept."""
        last = self._last
        if last is None or last.version != version:
            return False
        self._write_snapshot(version, last.sha256)
        self._last = _Last(version, last.sha256, last.header, 0, 0)
        return True

    def _replace(self, weights: TensorStream, limit: float) -> tuple[str, list[bytes] | None]:
        """Put new bytes into memory; return their digest and the records of a delta, None if above `limit` bytes."""
        records: list[bytes] = []
        size = 0
        waiting: deque[Future[bytes]] = deque()

        def collect(left: int) -> None:
            nonlocal size, limit
            while len(waiting) > left:
                record = waiting.popleft().result()
                size += len(record)
                if size > limit:
                    limit = 0.0
                    records.clear()
                elif record:
                    records.append(record)

        place = 0
        with BlockDigest() as digest, ThreadPoolExecutor(THREADS, "delta") as pool:
            for part in file_parts(weights):
                digest.update(part)
                new = np.frombuffer(part, np.uint8)
                for start in range(0, len(new), PIECE_BYTES):
                    piece = new[start : start + PIECE_BYTES]
                    waiting.append(pool.submit(self._replace_piece, place + start, piece, limit > 0))
                    collect(2 * THREADS)
                place += len(new)
            collect(0)
            return digest.hexdigest(), records if limit > 0 else None

    def _replace_piece(self, offset: int, new: np.ndarray, encode: bool) -> bytes:
        old = self._bytes[offset : offset + len(new)]
        record = encode_piece(offset, old, new) if encode else b""
        old[:] = new
        return record

    def _write_snapshot(self, version: int, sha256: str) -> None:
        with atomic_folder(policy_dir(self._policies, version), durable=False) as folder:
            (folder / WEIGHTS).write_bytes(self._bytes.data)
            finish_snapshot(self._policies, folder, Manifest(run=self._run, version=version, sha256=sha256))

    def _write_delta(self, version: int, sha256: str, base: _Last, records: Iterable[bytes]) -> int:
        """Write the folder of a delta and return the bytes of its file."""
        written = 0
        with atomic_folder(policy_dir(self._policies, version), durable=False) as folder:
            with (folder / DELTA).open("wb") as out, BlockDigest() as digest:
                for record in records:
                    written += out.write(record)
                    digest.update(memoryview(record))
                delta_sha256 = digest.hexdigest()
            manifest = Manifest(
                run=self._run,
                version=version,
                sha256=sha256,
                base_version=base.version,
                base_sha256=base.sha256,
                delta_sha256=delta_sha256,
            )
            write_manifest(folder, manifest)
        return written
