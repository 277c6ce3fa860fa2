"""Export of the student in a checkpoint to safetensors, for checkpoints without a published policy."""

import tomllib
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from calopd.models.adapters import merge_adapters
from calopd.rundir.checkpoints import MODEL_PREFIX, run_of
from calopd.rundir.files import atomic_folder
from calopd.rundir.policies import WEIGHTS
from calopd.rundir.tensor_files import TensorStream, write_tensors


def export_checkpoint(checkpoint: Path, target: Path) -> Path:
    """Write the weights of a torch DCP checkpoint, adapters merged, into the directory `target`."""
    learner = tomllib.loads(run_of(checkpoint).config.read_text(encoding="utf-8"))["learner"]
    entries = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    weights = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if name.startswith(MODEL_PREFIX) and isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(weights, checkpoint_id=checkpoint, no_dist=True)
    weights = {name.removeprefix(MODEL_PREFIX): tensor for name, tensor in weights.items()}
    if learner.get("lora_rank"):
        weights = merge_adapters(weights, learner["lora_alpha"] / learner["lora_rank"])
    head, embedding = weights.get("lm_head.weight"), weights["model.embed_tokens.weight"]
    if head is not None and torch.equal(head, embedding):
        del weights["lm_head.weight"]  # tied to the embedding: a policy stores it once
    with atomic_folder(target) as folder:
        write_tensors(folder / WEIGHTS, TensorStream.of(weights))  # readable by others, unlike safetensors' own files
    return target
