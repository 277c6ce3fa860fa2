"""The format of a published policy: a folder per version with a manifest and either the weights or a delta.

A snapshot has the weights as safetensors, a delta what changed since its base, an earlier version. The manifest has the
digest of the whole policy and, for a delta, that of its file and the digest of the base. All are verified before use.

Policies are not synced to the disk: after a power failure they are published again from the checkpoint, and one that
was damaged is refused for its digest.
"""

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from calopd.core.errors import PolicyError
from calopd.rundir.digests import file_digest
from calopd.rundir.files import atomic_folder
from calopd.rundir.layout import numbered, numbers
from calopd.rundir.tensor_files import TensorStream, write_tensors

WEIGHTS = "model.safetensors"
DELTA = "delta.bin"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    run: str
    version: int
    sha256: str
    """Digest of the policy's safetensors file, whether it is there or follows from the delta."""
    base_version: int | None = None
    """None for a snapshot."""
    base_sha256: str = ""
    delta_sha256: str = ""
    """Digest of the delta's file."""

    @property
    def is_delta(self) -> bool:
        return self.base_version is not None


def policy_dir(policies: Path, version: int) -> Path:
    return numbered(policies, version)


def policy_versions(policies: Path) -> list[int]:
    """The versions that are published, in order."""
    return numbers(policies, MANIFEST)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest)))


def read_manifest(policies: Path, version: int) -> Manifest:
    """The manifest of a published policy."""
    directory = policy_dir(policies, version)
    try:
        values = json.loads((directory / MANIFEST).read_text())
    except OSError:
        raise PolicyError(f"no policy at {directory}: it was not published, or was removed") from None
    except (ValueError, RecursionError):
        values = None
    try:
        manifest = Manifest(**values)
        assert isinstance(manifest.sha256, str)
        assert type(manifest.version) is int
        base = manifest.base_version
        assert base is None or (type(base) is int and 0 <= base < version)
    except (AssertionError, TypeError):
        raise PolicyError(f"the manifest of policy {version} at {directory} is damaged") from None
    if manifest.version != version:
        raise PolicyError(f"policy {version} at {directory} does not match its manifest: refused")
    return manifest


def chain(policies: Path, version: int, until: Manifest | None = None) -> list[Manifest]:
    """A policy and the ones that it is a delta to, newest first; the last one is a snapshot, or `until`."""
    links = [read_manifest(policies, version)]
    while links[-1] != until and (base := links[-1].base_version) is not None:
        links.append(read_manifest(policies, base))
        if links[-1].sha256 != links[-2].base_sha256:
            raise PolicyError(
                f"policy {links[-2].version} is a delta to other weights than those published as policy {base}: refused"
            )
    return links


def verify_files(policies: Path, manifest: Manifest) -> Path:
    """The folder of a snapshot or delta, after comparing its file with the manifest."""
    directory = policy_dir(policies, manifest.version)
    name, expected = (DELTA, manifest.delta_sha256) if manifest.is_delta else (WEIGHTS, manifest.sha256)
    try:
        digest = file_digest(directory / name)
    except OSError:
        raise PolicyError(f"no policy at {directory}: {name} was removed") from None
    if digest != expected:
        raise PolicyError(f"policy {manifest.version} at {directory} does not match its manifest: refused")
    return directory


def publish_policy(policies: Path, version: int, tensors: TensorStream | Mapping[str, torch.Tensor], run: str) -> str:
    """Write policy `version` as a snapshot and return its sha256."""
    stream = tensors if isinstance(tensors, TensorStream) else TensorStream.of(tensors)
    with atomic_folder(policy_dir(policies, version), durable=False) as folder:
        digest = write_tensors(folder / WEIGHTS, stream)
        finish_snapshot(policies, folder, Manifest(run=run, version=version, sha256=digest))
    return digest


def finish_snapshot(policies: Path, folder: Path, manifest: Manifest) -> None:
    """Add the manifest; if the same snapshot is published already, it stays untouched and `folder` is removed."""
    write_manifest(folder, manifest)
    try:
        published = read_manifest(policies, manifest.version)
        if published == manifest:
            verify_files(policies, published)
            shutil.rmtree(folder)
    except PolicyError:
        pass  # nothing is published, or it is damaged


def published_sha256(policies: Path, version: int) -> str | None:
    """The sha256 in the manifest of a policy; None if it is not published."""
    try:
        return read_manifest(policies, version).sha256
    except PolicyError:
        return None


def is_intact(policies: Path, version: int) -> bool:
    """Whether a policy can be read, with all that it is a delta to: a power failure may have damaged it."""
    try:
        for manifest in chain(policies, version):
            verify_files(policies, manifest)
    except PolicyError:
        return False
    return True


def load_policy(directory: Path) -> dict[str, torch.Tensor]:
    """The tensors of a whole policy: of a snapshot's folder, or of one that `PolicyReader` returns."""
    return load_file(directory / WEIGHTS)


def prune_policies(policies: Path, newest: int, keep: int, needed: Collection[int] = ()) -> None:
    """Remove all but the last `keep` policies, those that an evaluation still needs, and what these are deltas to."""
    versions = policy_versions(policies)
    kept = {version for version in versions if version > newest - keep or version in needed}
    for version in sorted(kept):
        try:
            kept |= {manifest.version for manifest in chain(policies, version)}
        except PolicyError:
            continue  # damaged: whoever needs it asks for it
    for version in versions:
        if version not in kept:
            shutil.rmtree(policy_dir(policies, version), ignore_errors=True)
