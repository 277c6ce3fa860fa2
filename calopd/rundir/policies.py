"""The format of a published policy: safetensors and a manifest with their sha256, which is verified before use."""

import hashlib
import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from calopd.core.errors import PolicyError
from calopd.rundir.files import atomic_folder
from calopd.rundir.layout import numbered, numbers

WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"


def policy_dir(policies: Path, version: int) -> Path:
    return numbered(policies, version)


def policy_versions(policies: Path) -> list[int]:
    """The versions that are published, in order."""
    return numbers(policies, MANIFEST)


def publish_policy(policies: Path, version: int, tensors: Mapping[str, torch.Tensor], run: str) -> str:
    """Write policy `version` and return its sha256. If the same bytes are published already, they stay untouched."""
    target = policy_dir(policies, version)
    with atomic_folder(target) as folder:
        weights = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        digest = sha256(folder / WEIGHTS)
        (folder / MANIFEST).write_text(json.dumps({"run": run, "version": version, "sha256": digest}))
        if _published_sha256(target) == digest:
            shutil.rmtree(folder)
    return digest


def _published_sha256(directory: Path) -> str | None:
    try:
        return str(_manifest(directory)["sha256"])
    except PolicyError:
        return None


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
        digest = sha256(directory / WEIGHTS)
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


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
