"""Files of a model on disk: where they are, whether they are complete, how many parameters they hold."""

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

from calopd.core.errors import ConfigError
from calopd.core.hub_ids import HUB_SECONDS, is_hub_id

MAX_HEADER = 100_000_000
"""The largest header that safetensors allows, in bytes."""


def is_local(path: str) -> bool:
    """Whether the path of a model is a directory; otherwise it is an id on the hub (`owner/name`)."""
    return not is_hub_id(path) or Path(path).exists()


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


def check_exists(key: str, path: str) -> None:
    """Refuse a path without a folder, and a hub id of a model that is neither downloaded nor on the hub."""
    if is_local(path) and not Path(path).is_dir():
        raise ConfigError(f"{key} = {path!r}: no folder there; expected a model directory, or a hub id (owner/name)")
    if not is_local(path) and model_folder(path) is None:
        _check_on_hub(key, path)


def check_model(key: str, path: str) -> None:
    """Refuse a path or a hub id without a model."""
    check_exists(key, path)
    directory = Path(path)
    if not is_local(path):
        return
    if not (directory / "config.json").is_file() or not list(directory.glob("*.safetensors")):
        raise ConfigError(f"{key} = {path!r}: no model found (expected config.json and *.safetensors)")


def _check_on_hub(key: str, path: str) -> None:
    """Refuse an id that the hub does not know, or cannot be asked for: loading it would take minutes to fail."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    given = f"{key} = {path!r}: no folder there, so it is taken as a hub id"
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(f"{given}, but HF_HUB_OFFLINE is set and it is not downloaded: correct the path")
    try:
        HfApi().model_info(path, timeout=HUB_SECONDS)
    except GatedRepoError:
        raise ConfigError(f"{given}, which needs a login: accept its terms on the hub and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise ConfigError(f"{given}, which the hub does not know: correct it") from None
    except Exception as error:  # the HTTP client raises many types; all mean that the hub did not answer
        raise ConfigError(
            f"{given}, but the hub does not answer ({type(error).__name__}): correct the path, or download the model "
            "with `calopd download` where there is a network"
        ) from None


def check_positions(key: str, path: str, needed: int, settings: str) -> None:
    """Refuse a model whose positions are fewer than `needed`; `settings` names what adds up to it."""
    folder = model_folder(path)
    limit = max_positions(folder) if folder is not None and (folder / "config.json").is_file() else None
    if limit is not None and needed > limit:
        raise ConfigError(
            f"{key} = {path!r} has {limit:,} positions, but {settings} = {needed:,}: lower one of them to fit"
        )


def max_positions(folder: Path) -> int | None:
    """The longest sequence that a model can read, prompt and response together; None if it does not say."""
    limit = model_config(folder).get("max_position_embeddings")
    return int(limit) if limit else None


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


def weights_digest(configuration: str, files: list[Path]) -> str:
    """Identifier of a model: a digest of its configuration and of samples spread over the weight files."""
    digest = hashlib.sha256(configuration.encode())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as weights:
            for part in range(16):
                weights.seek(part * size // 16)
                digest.update(weights.read(65_536))
    return digest.hexdigest()[:12]


def count_parameters(folder: Path) -> int:
    """Number of parameters in the weight files; each file is checked for completeness."""
    return sum(math.prod(entry["shape"]) for file in weight_files(folder) for entry in tensors(file).values())
