"""Export of the student in a checkpoint to safetensors, for checkpoints without a published policy."""

from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from calopd.models.adapters import merge_adapters
from calopd.rundir.checkpoint_tensors import Reader, load_tensors
from calopd.rundir.checkpoints import MODEL_PREFIX, run_of, verify
from calopd.rundir.files import atomic_folder
from calopd.rundir.policies import WEIGHTS
from calopd.rundir.saved_config import read_config
from calopd.rundir.tensor_files import TensorStream, write_tensors


def export_checkpoint(checkpoint: Path, target: Path) -> Path:
    """Write the weights of a torch DCP checkpoint, adapters merged, into the directory `target`."""
    learner = read_config(run_of(checkpoint))["learner"]
    verify(checkpoint)
    entries = Reader(checkpoint).read_metadata().state_dict_metadata
    weights = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if name.startswith(MODEL_PREFIX) and isinstance(entry, TensorStorageMetadata)
    }
    load_tensors(weights, checkpoint, alone=True)
    weights = {name.removeprefix(MODEL_PREFIX): tensor for name, tensor in weights.items()}
    if learner.get("lora_rank"):
        weights = merge_adapters(weights, learner["lora_alpha"] / learner["lora_rank"])
    head, embedding = weights.get("lm_head.weight"), weights["model.embed_tokens.weight"]
    if head is not None and torch.equal(head, embedding):
        del weights["lm_head.weight"]  # tied to the embedding: a policy stores it once
    with atomic_folder(target) as folder:
        write_tensors(folder / WEIGHTS, TensorStream.of(weights))  # readable by others, unlike safetensors' own files
    return target
