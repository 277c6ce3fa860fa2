"""Checkpoints: torch DCP written aside and renamed, so that one that is there is whole."""

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful

from calopd.rundir.files import write_json
from calopd.rundir.policies import sync
from services.learner.student import Student

RECORD = "record.json"


@dataclass(slots=True)
class Record:
    """What a checkpoint says beside the tensors."""

    step: int = 0
    """Optimizer steps done = version of the policy in it."""
    issued: int = 0
    used: dict[str, list[int]] = field(default_factory=dict)
    """Batch -> indices of the tickets whose trajectories entered its gradient, as often as they did."""
    seconds: float = 0.0
    sampler: str = ""

    @property
    def trajectories_used(self) -> int:
        return sum(len(indices) for indices in self.used.values())


class _State(Stateful):
    """Model and optimizer as DCP wants them."""

    def __init__(self, student: Student, optimizer: torch.optim.Optimizer) -> None:
        self._student, self._optimizer = student, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._student, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self._student, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


def _directory(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"{step:06d}"


def latest(run_dir: Path) -> Path | None:
    """The newest whole checkpoint."""
    found = [d for d in (run_dir / "checkpoints").glob("*") if d.name.isdigit() and (d / RECORD).exists()]
    return max(found, default=None)


def read_record(directory: Path) -> Record:
    return Record(**json.loads((directory / RECORD).read_text()))


def save(run_dir: Path, student: Student, optimizer: torch.optim.Optimizer, record: Record, keep: int) -> None:
    """Write a checkpoint; all ranks call it, and it is durable when it returns."""
    target = _directory(run_dir, record.step)
    aside = target.with_name(target.name + ".aside")
    if dist.get_rank() == 0:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
    dist.barrier()
    dcp.save({"state": _State(student, optimizer)}, checkpoint_id=aside)
    if dist.get_rank() == 0:
        write_json(aside / RECORD, asdict(record))
        sync(*(file for file in aside.rglob("*") if file.is_file()), aside)
        # Should one of this step be there, it goes only after the new one is in its place.
        old = target.with_name(target.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            os.rename(target, old)
        os.rename(aside, target)
        shutil.rmtree(old, ignore_errors=True)
        sync(target.parent)
        for old in sorted(d for d in target.parent.glob("*") if d.name.isdigit())[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    dist.barrier()


def load(directory: Path, student: Student, optimizer: torch.optim.Optimizer) -> Record:
    """Take up a checkpoint, written by any number of ranks."""
    dcp.load({"state": _State(student, optimizer)}, checkpoint_id=directory)
    return read_record(directory)
