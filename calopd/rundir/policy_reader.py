"""A rollout's side of policies in files: verified snapshots, and a copy of its own that deltas are applied to."""

import contextlib
import fcntl
import logging
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import numpy as np

from calopd.core.errors import ConfigError, PolicyError
from calopd.rundir.digests import file_digest
from calopd.rundir.locks import exclusive
from calopd.rundir.policies import DELTA, WEIGHTS, Manifest, chain, policy_dir, verify_files
from calopd.rundir.policy_deltas import apply_delta
from calopd.rundir.policy_transport import Fetched

log = logging.getLogger(__name__)


PREFIX, LOCK = "calopd-policy-", "reader.lock"
YOUNG_SECONDS = 60
"""Age below which a folder without a lock may be one that is being created."""


def _remove_abandoned(parent: Path) -> None:
    """Remove the copies of readers that no longer exist: the kernel has released their locks."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ConfigError):
            if time.time() - folder.stat().st_mtime > YOUNG_SECONDS:
                with exclusive(folder / LOCK, "in use"):
                    shutil.rmtree(folder)


class FileReader:
    """Snapshots are read where they are. For a delta, the copy is brought up to date and its digest compared.

    The copy is in a temporary folder of `cache`, or of the system, and ends with the process. If that is killed, the
    next reader removes it.
    """

    def __init__(self, policies: Path, cache: Path | None = None) -> None:
        self._policies = policies
        parent = Path(gettempdir()) if cache is None else cache
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent)
        self._folder = TemporaryDirectory(prefix=PREFIX, dir=parent)
        self._lock = (Path(self._folder.name) / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._copy: Manifest | None = None
        """The policy that the copy holds; None while it is being changed."""

    def fetch(self, version: int, sha256: str | None = None) -> Fetched:
        """A verified policy. One that cannot be built on the copy is built on the newest snapshot before it."""
        links = chain(self._policies, version, until=self._copy)
        wanted = links[0]
        if sha256 not in (None, wanted.sha256):
            raise PolicyError(f"policy {version} at {policy_dir(self._policies, version)} is not the one announced")
        if not wanted.is_delta:
            return Fetched(verify_files(self._policies, wanted), wanted.sha256)
        if links[-1] == self._copy:
            try:
                return self._bring_up_to_date(links[:-1], wanted)
            except PolicyError as error:
                log.warning("policy %d cannot be built on the copy, the snapshot is read: %s", version, error)
            links = chain(self._policies, version)
        self._copy = None
        snapshot = policy_dir(self._policies, links[-1].version) / WEIGHTS
        try:
            shutil.copyfile(snapshot, self._file)
        except OSError as error:
            raise PolicyError(f"cannot copy the snapshot {snapshot}: {error}") from None
        return self._bring_up_to_date(links[:-1], wanted)

    @property
    def _file(self) -> Path:
        return Path(self._folder.name) / WEIGHTS

    def _bring_up_to_date(self, deltas: list[Manifest], wanted: Manifest) -> Fetched:
        """Apply deltas, given newest first, to the copy."""
        for delta in deltas:
            verify_files(self._policies, delta)
        self._copy = None
        for delta in reversed(deltas):
            self._apply(policy_dir(self._policies, delta.version) / DELTA)
        if file_digest(self._file) != wanted.sha256:
            raise PolicyError(
                f"policy {wanted.version}, rebuilt from a snapshot and deltas, does not match its manifest: refused"
            )
        self._copy = wanted
        return Fetched(self._file.parent, wanted.sha256)

    def _apply(self, delta: Path) -> None:
        try:
            content = delta.read_bytes()
        except OSError as error:
            raise PolicyError(f"cannot read {delta}: {error}") from None
        apply_delta(np.memmap(self._file, np.uint8, mode="r+"), content)
