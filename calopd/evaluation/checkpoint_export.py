"""Export of the student in a checkpoint to safetensors, for checkpoints without a published policy."""

import tomllib
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from calopd.models.adapters import merge_adapters
from calopd.rundir.policies import WEIGHTS

_PREFIX = "state.model.lm."


def export_checkpoint(checkpoint: Path, target: Path) -> Path:
    """Write the weights of a torch DCP checkpoint, adapters merged, into the directory `target`."""
    learner = tomllib.loads((checkpoint.parent.parent / "config.toml").read_text(encoding="utf-8"))["learner"]
    entries = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    weights = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if name.startswith(_PREFIX) and isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(weights, checkpoint_id=checkpoint, no_dist=True)
    weights = {name.removeprefix(_PREFIX): tensor for name, tensor in weights.items()}
    if learner.get("lora_rank"):
        weights = merge_adapters(weights, learner["lora_alpha"] / learner["lora_rank"])
    head, embedding = weights.get("lm_head.weight"), weights["model.embed_tokens.weight"]
    if head is not None and torch.equal(head, embedding):
        del weights["lm_head.weight"]  # tied to the embedding: a policy stores it once
    target.mkdir(parents=True, exist_ok=True)
    save_file(weights, target / WEIGHTS, metadata={"format": "pt"})
    return target
