"""Files of a model on disk: where they are, whether they are complete, how many parameters they hold."""

import json
import math
import struct
from pathlib import Path
from typing import Any

from calopd.core.errors import ConfigError

MAX_HEADER = 100_000_000
"""The largest header that safetensors allows, in bytes."""


def is_local(path: str) -> bool:
    """Whether the path of a model is a directory; otherwise it is an id on the hub (`owner/name`)."""
    return path.startswith((".", "/", "~")) or path.count("/") != 1 or Path(path).exists()


def model_folder(path: str) -> Path | None:
    """The folder with the files of a model; None for an id on the hub that has not been downloaded."""
    if is_local(path):
        return Path(path)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(path, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def check_model(key: str, path: str) -> None:
    """Refuse a local path without a model."""
    directory = Path(path)
    if not is_local(path):
        return  # a hub id: the service downloads it, and reports an error if it cannot
    if not (directory / "config.json").is_file() or not list(directory.glob("*.safetensors")):
        raise ConfigError(f"{key} = {path!r}: no model found (expected config.json and *.safetensors)")


def model_config(folder: Path) -> dict[str, Any]:
    """The content of config.json."""
    try:
        values: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / 'config.json'} cannot be read: {error}") from None
    return values


def tensors(file: Path) -> dict[str, dict[str, Any]]:
    """The header of a safetensors file: dtype, shape and place of each tensor. A damaged file is a ConfigError."""
    size = file.stat().st_size
    with file.open("rb") as weights:
        length = struct.unpack("<Q", weights.read(8))[0] if size >= 8 else size
        if length > min(size, MAX_HEADER):
            raise ConfigError(f"{file}: no safetensors file, or only its beginning")
        try:
            header: dict[str, dict[str, Any]] = json.loads(weights.read(length))
        except ValueError:
            raise ConfigError(f"{file}: the header of the safetensors file is damaged") from None
    header.pop("__metadata__", None)
    expected = 8 + length + max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
    if size != expected:
        raise ConfigError(f"{file}: {size:,} bytes, expected {expected:,}: the file is truncated or damaged")
    return header


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a model; an index that names a missing one is a ConfigError."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{folder}: {len(missing)} of {len(names)} weight files are missing, e.g. {missing[0]}")
    return [folder / name for name in names]


def count_parameters(folder: Path) -> int:
    """Number of parameters in the weight files; each file is checked for completeness."""
    return sum(math.prod(entry["shape"]) for file in weight_files(folder) for entry in tensors(file).values())
