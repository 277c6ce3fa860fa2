"""Checkpoints of the student and its optimizer, written and read with torch DCP by all ranks together."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful

from calopd.rundir.checkpoints import Record, prune, read_record, write_record
from calopd.rundir.files import atomic_folder, temporary_folder
from calopd.rundir.layout import RunDir
from services.learner.student import Student


class _State(Stateful):
    """Model and optimizer in the form that DCP expects."""

    def __init__(self, student: Student, optimizer: torch.optim.Optimizer) -> None:
        self._student, self._optimizer = student, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._student, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self._student, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


def save(run_dir: RunDir, student: Student, optimizer: torch.optim.Optimizer, record: Record, keep: int) -> None:
    """Write a checkpoint; all ranks call this, and the checkpoint is durable when it returns."""
    first, target = dist.get_rank() == 0, run_dir.checkpoint(record.step)
    with atomic_folder(target) if first else nullcontext(temporary_folder(target)) as folder:
        dist.barrier()  # rank 0 has created the folder
        dcp.save({"state": _State(student, optimizer)}, checkpoint_id=folder)
        if first:
            write_record(folder, record)
    if first:
        prune(run_dir, keep)
    dist.barrier()


def load(checkpoint: Path, student: Student, optimizer: torch.optim.Optimizer) -> Record:
    """Restore a checkpoint that was written by any number of ranks."""
    dcp.load({"state": _State(student, optimizer)}, checkpoint_id=checkpoint)
    return read_record(checkpoint)
