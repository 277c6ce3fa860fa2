"""The format of a published policy: safetensors and a manifest with their digest, which is verified before use.

Policies are not synced to the disk: after a power failure they are published again from the checkpoint, and one that
was damaged is refused for its digest.
"""

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from calopd.core.errors import PolicyError
from calopd.rundir.digests import file_digest
from calopd.rundir.files import atomic_folder
from calopd.rundir.layout import numbered, numbers
from calopd.rundir.tensor_files import TensorStream, write_tensors

WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"


def policy_dir(policies: Path, version: int) -> Path:
    return numbered(policies, version)


def policy_versions(policies: Path) -> list[int]:
    """The versions that are published, in order."""
    return numbers(policies, MANIFEST)


def publish_policy(policies: Path, version: int, tensors: TensorStream | Mapping[str, torch.Tensor], run: str) -> str:
    """Write policy `version` and return its sha256. If the same bytes are published already, they stay untouched."""
    target = policy_dir(policies, version)
    stream = tensors if isinstance(tensors, TensorStream) else TensorStream.of(tensors)
    with atomic_folder(target, durable=False) as folder:
        digest = write_tensors(folder / WEIGHTS, stream)
        (folder / MANIFEST).write_text(json.dumps({"run": run, "version": version, "sha256": digest}))
        if published_sha256(policies, version) == digest and is_intact(policies, version):
            shutil.rmtree(folder)
    return digest


def published_sha256(policies: Path, version: int) -> str | None:
    """The sha256 in the manifest of a policy; None if it is not published."""
    try:
        return str(_manifest(policy_dir(policies, version))["sha256"])
    except PolicyError:
        return None


def is_intact(policies: Path, version: int) -> bool:
    """Whether a policy has the bytes of its manifest: it may have been damaged by a power failure."""
    try:
        verify_policy(policies, version)
    except PolicyError:
        return False
    return True


def _manifest(directory: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
    except (OSError, ValueError):
        raise PolicyError(f"no policy at {directory}: it was not published, or was removed") from None
    return manifest


def verify_policy(policies: Path, version: int) -> tuple[Path, str]:
    """The directory of a published policy and its sha256, after comparing the bytes with the manifest."""
    directory = policy_dir(policies, version)
    manifest = _manifest(directory)
    try:
        digest = file_digest(directory / WEIGHTS)
    except OSError:
        raise PolicyError(f"no policy at {directory}: it was removed") from None
    if (manifest["version"], manifest["sha256"]) != (version, digest):
        raise PolicyError(f"policy {version} at {directory} does not match its manifest: refused")
    return directory, digest


def load_policy(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / WEIGHTS)


def prune_policies(policies: Path, newest: int, keep: int, needed: Collection[int] = ()) -> None:
    """Remove all but the last `keep` policies and those that an evaluation still needs."""
    for directory in policies.iterdir():
        if directory.name.isdigit() and int(directory.name) <= newest - keep and int(directory.name) not in needed:
            shutil.rmtree(directory, ignore_errors=True)
