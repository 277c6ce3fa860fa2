"""The format of a checkpoint on disk: `checkpoints/<step>/` with torch DCP files, record.json and digests.json.

The manifest has the digest of every other file. It is verified before anything is read.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from calopd.core.errors import CheckpointDamaged
from calopd.rundir.digests import file_digest
from calopd.rundir.files import TEMPORARY, temporary_folder, write_json
from calopd.rundir.layout import RunDir, numbers

RECORD, MANIFEST = "record.json", "digests.json"
DAMAGED = ".damaged"
"""Suffix of a checkpoint that was moved aside."""
MODEL_PREFIX = "state.model.lm."
"""Prefix of the student's weights among the DCP entries."""

log = logging.getLogger(__name__)


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
    policies: dict[str, str] = field(default_factory=dict)
    """Version -> sha256 of the published policies that the next steps may be sampled from."""

    @property
    def trajectories_used(self) -> int:
        return sum(len(indices) for indices in self.used.values())


def steps(run_dir: RunDir) -> list[int]:
    """Steps of the complete checkpoints, in order."""
    return numbers(run_dir.checkpoints, RECORD)


def latest(run_dir: RunDir) -> Path | None:
    """The newest complete checkpoint, not verified."""
    found = steps(run_dir)
    return run_dir.checkpoint(found[-1]) if found else None


def newest_intact(run_dir: RunDir) -> Iterator[Path | None]:
    """Look for the newest checkpoint that matches its manifest.

    Yields None after each file that was compared, which may take minutes, and at last the checkpoint, if there is one.
    Newer ones, which are damaged, are moved aside. If all are damaged, every call raises and nothing is moved: to start
    again from the first step is for the user to decide.
    """
    damaged: list[Path] = []
    for step in reversed(numbers(run_dir.checkpoints)):
        checkpoint = run_dir.checkpoint(step)
        try:
            yield from compare(checkpoint)
        except CheckpointDamaged as error:
            log.error("%s", error)
            damaged.append(checkpoint)
        else:
            _move_aside(damaged)
            yield checkpoint
            return
    if damaged or any(run_dir.checkpoints.glob(f"*{DAMAGED}")):
        raise CheckpointDamaged(
            f"no checkpoint in {run_dir.checkpoints} is intact: restore one from a backup, or start the run again with "
            "--overwrite"
        )


def verify(checkpoint: Path) -> None:
    """Compare every file of a checkpoint with the manifest; raise CheckpointDamaged."""
    for _ in compare(checkpoint):
        pass


def compare(checkpoint: Path) -> Iterator[None]:
    """Verify a checkpoint; yields after each file."""
    try:
        digests = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["sha256"]
        expected = {str(name): str(digest) for name, digest in digests.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointDamaged(f"checkpoint {checkpoint} has no readable {MANIFEST}") from None
    present = {file.name for file in checkpoint.iterdir()} - {MANIFEST}
    if foreign := present - expected.keys():
        raise CheckpointDamaged(f"checkpoint {checkpoint} holds {min(foreign)}, which its manifest does not list")
    if missing := {RECORD, *expected} - present:
        raise CheckpointDamaged(f"checkpoint {checkpoint} lacks {min(missing)}")
    for name, digest in expected.items():
        if file_digest(checkpoint / name) != digest:
            raise CheckpointDamaged(f"checkpoint {checkpoint} is damaged: {name} does not match the manifest")
        yield


def digests_of(files: Iterable[Path]) -> dict[str, str]:
    """File name -> digest, for the manifest."""
    return {file.name: file_digest(file) for file in files}


def write_manifest(checkpoint: Path, digests: Mapping[str, str]) -> None:
    write_json(checkpoint / MANIFEST, {"sha256": dict(sorted(digests.items()))})


def _move_aside(damaged: Sequence[Path]) -> None:
    """Rename damaged checkpoints, which take the place of those that were moved aside before."""
    if damaged:
        for folder in damaged[0].parent.glob(f"*{DAMAGED}"):
            shutil.rmtree(folder, ignore_errors=True)
    for checkpoint in damaged:
        log.error("%s is moved aside, the checkpoint before it is used and its steps are repeated", checkpoint)
        os.rename(checkpoint, checkpoint.with_name(checkpoint.name + DAMAGED))


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
        # Renamed first: a kill must not leave half of it behind.
        leaving = temporary_folder(run_dir.checkpoint(step))
        os.rename(run_dir.checkpoint(step), leaving)
        shutil.rmtree(leaving, ignore_errors=True)
