"""Check of the space for checkpoints and policies."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from calopd.config import Config
from calopd.doctor.case import Case
from calopd.doctor.outcome import Outcome, failed, not_checked, passed

REST_BYTES = 10**9
"""Logs, metrics, report and the data of the queue, at least."""


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes that a run writes to a folder, and the bytes that are free there."""

    folder: Path
    purpose: str
    setting: str
    """The settings that change the size."""
    needed: float
    free: float
    device: int


def needed_bytes(config: Config) -> tuple[float, float] | None:
    """Bytes in the run's directory and for the published policies; None if the shape of the student is not known.

    A checkpoint is written before the oldest one is removed. The exported model may be float32.
    """
    from calopd.planning.storage import checkpoint_bytes, policies_bytes, policy_bytes  # imports torch

    checkpoint, policy, policies = checkpoint_bytes(config), policy_bytes(config), policies_bytes(config)
    if checkpoint is None or policy is None or policies is None:
        return None
    return (config.learner.keep_checkpoints + 1) * checkpoint + 2 * policy + REST_BYTES, policies


def first_shortage(spaces: list[Space]) -> tuple[Space, float] | None:
    """The first folder whose file system lacks space for all that is written to it, and the bytes needed there."""
    for space in spaces:
        needed = sum(other.needed for other in spaces if other.device == space.device)
        if needed > space.free:
            return space, needed
    return None


def disk(case: Case) -> Outcome:
    needed = needed_bytes(case.config)
    if needed is None:
        return not_checked("the architecture of the student is not known, or it is not on this machine")
    runs, policies = needed
    keys = ("learner.keep_checkpoints", "learner.keep_policies")
    places = ((case.config.run_dir.path, "checkpoints", runs), (case.config.policies, "policies", policies))
    spaces = [_space(place, what, key, need) for (place, what, need), key in zip(places, keys, strict=True)]
    return judge_space(spaces)


def judge_space(spaces: list[Space]) -> Outcome:
    if shortage := first_shortage(spaces):
        space, needed = shortage
        return failed(
            f"{space.folder}: about {needed / 1e9:.1f} GB needed for {space.purpose}, {space.free / 1e9:.1f} GB free",
            f"free space there, lower {space.setting}, or set run.dir or run.policies to a larger volume",
        )
    shown = ", ".join(f"{s.purpose} {s.needed / 1e9:.1f} of {s.free / 1e9:.0f} GB free" for s in spaces)
    return passed(shown)


def _space(path: Path, purpose: str, setting: str, needed: float) -> Space:
    """Files that an earlier start of the run left there count as written."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
    written = sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else 0
    usage = shutil.disk_usage(existing)
    return Space(existing, purpose, setting, max(0.0, needed - written), usage.free, existing.stat().st_dev)
