"""Check of the space for checkpoints and policies."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from calopd.config import Config
from calopd.config.visible_gpus import needed_gpus
from calopd.doctor.case import Case
from calopd.doctor.outcome import Outcome, failed, not_checked, passed
from calopd.models.model_files import count_parameters

STATE_BYTES = 12
"""Bytes of a checkpoint per parameter: the float32 weight and the two moments of AdamW."""
REST_GB = 1.0
"""Logs, metrics, report and the data of the queue."""


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


def needed_bytes(config: Config, parameters: int) -> tuple[float, float]:
    """Bytes in the run's directory (checkpoints, exported model, the rest) and for the published policies.

    A checkpoint or policy is written before the oldest one is removed, so there is one more than are kept.
    """
    learner = config.learner
    trained = STATE_BYTES if not learner.lora_rank else 4
    runs = (learner.keep_checkpoints + 1) * trained * parameters + 4 * parameters + REST_GB * 1e9
    waiting = 1 if config.evaluation.problems else 0  # stays until its evaluation is complete
    dtype = config.rollout.dtype
    half = dtype == "bfloat16" or (dtype == "auto" and bool(needed_gpus(config)))
    return runs, (learner.keep_policies + 1 + waiting) * (2 if half else 4) * parameters


def first_shortage(spaces: list[Space]) -> tuple[Space, float] | None:
    """The first folder whose file system lacks space for all that is written to it, and the bytes needed there."""
    for space in spaces:
        needed = sum(other.needed for other in spaces if other.device == space.device)
        if needed > space.free:
            return space, needed
    return None


def disk(case: Case) -> Outcome:
    folder = case.folder("student")
    if folder is None:
        return not_checked("the size of the student is not known before it is downloaded")
    runs, policies = needed_bytes(case.config, count_parameters(folder))
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
