"""Policies on a shared volume: safetensors, a manifest with sha256, renamed into place, verified before use."""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from calopd.core.errors import PolicyError

WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"


def policy_dir(policies: Path, version: int) -> Path:
    return policies / f"{version:06d}"


def publish_policy(policies: Path, version: int, tensors: Mapping[str, torch.Tensor], run: str) -> str:
    """Write policy `version` aside and rename it into place; its sha256. The same bytes are left where they are."""
    target = policy_dir(policies, version)
    aside = target.with_name(target.name + ".aside")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, aside / WEIGHTS, metadata={"format": "pt"}
    )
    digest = sha256(aside / WEIGHTS)
    (aside / MANIFEST).write_text(json.dumps({"run": run, "version": version, "sha256": digest}))
    sync(aside / WEIGHTS, aside / MANIFEST)
    if target.exists():
        try:
            if _manifest(target)["sha256"] == digest:
                shutil.rmtree(aside)
                return digest
        except PolicyError:
            pass
        shutil.rmtree(target)
    os.rename(aside, target)
    return digest


def _manifest(directory: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
    except (OSError, ValueError):
        raise PolicyError(f"no policy at {directory}: it was not published, or removed") from None
    return manifest


def verify_policy(policies: Path, version: int) -> tuple[Path, str]:
    """The directory of a published policy and its sha256, after its bytes have been compared with its manifest."""
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


def sync(*paths: Path) -> None:
    """Have the bytes on the disk before a rename says that they are there."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
