"""The format of a checkpoint on disk: `checkpoints/<step>/` with torch DCP files and record.json.

The tensors are written and read by the learner only.
"""

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from calopd.rundir.files import TEMPORARY, write_json
from calopd.rundir.layout import RunDir, numbered, numbers

RECORD = "record.json"
MODEL_PREFIX = "state.model.lm."
"""Prefix of the student's weights among the DCP entries."""


@dataclass(slots=True)
class Record:
    """The state of a run that is stored beside the tensors."""

    step: int = 0
    """Optimizer steps done; also the version of the policy in the checkpoint."""
    issued: int = 0
    used: dict[str, list[int]] = field(default_factory=dict)
    """Batch -> indices of the tickets whose trajectories entered its gradient, as often as they did."""
    seconds: float = 0.0
    sampler: str = ""

    @property
    def trajectories_used(self) -> int:
        return sum(len(indices) for indices in self.used.values())


def steps(run_dir: RunDir) -> list[int]:
    """Steps of the complete checkpoints, in order."""
    return numbers(run_dir.checkpoints, RECORD)


def latest(run_dir: RunDir) -> Path | None:
    """The newest complete checkpoint."""
    found = steps(run_dir)
    return run_dir.checkpoint(found[-1]) if found else None


def run_of(checkpoint: Path) -> RunDir:
    """The run that a checkpoint belongs to."""
    return RunDir(checkpoint.parent.parent)


def read_record(checkpoint: Path) -> Record:
    return Record(**json.loads((checkpoint / RECORD).read_text()))


def write_record(checkpoint: Path, record: Record) -> None:
    write_json(checkpoint / RECORD, asdict(record))


def remove_incomplete(run_dir: RunDir) -> None:
    """Remove what a killed learner did not finish to write; no learner may be running."""
    for folder in run_dir.checkpoints.glob(f"*{TEMPORARY}"):
        shutil.rmtree(folder, ignore_errors=True)


def prune(run_dir: RunDir, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for step in steps(run_dir)[:-keep]:
        shutil.rmtree(numbered(run_dir.checkpoints, step), ignore_errors=True)
