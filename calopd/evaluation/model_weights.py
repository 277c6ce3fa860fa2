"""The weights that are evaluated: where they are on this machine, and which bytes they are."""

from pathlib import Path

from calopd.core.errors import ConfigError
from calopd.evaluation.evaluated_models import Model
from calopd.rundir.digests import sha256
from calopd.rundir.policies import read_manifest


def local_path(path: str) -> str:
    """The directory of a model; a hub id becomes its snapshot, so that its bytes identify what is evaluated."""
    if Path(path).is_dir():
        return path
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(path, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"])
    except Exception as error:  # the hub client raises many types; all mean that the download failed
        raise ConfigError(f"{path} cannot be downloaded from the hub: {str(error).splitlines()[0]}") from None


def weights_digest(model: Model) -> str:
    """sha256 of the weights: of a policy as published, of a single file itself, of several the joined beginnings."""
    if model.weights is not None and not model.is_checkpoint:
        return read_manifest(model.weights.parent, int(model.weights.name)).sha256
    if model.weights is not None:
        files = sorted(file for file in model.weights.rglob("*") if file.is_file())
    else:
        files = sorted(Path(local_path(model.path)).glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{model.weights or model.path}: no safetensors found")
    digests = [sha256(file) for file in files]
    return digests[0] if len(digests) == 1 else "+".join(digest[:16] for digest in digests)
