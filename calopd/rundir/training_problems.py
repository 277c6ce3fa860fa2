"""The problems that a run trains on: they stay the same from its first step to its last."""

from pathlib import Path
from typing import Any

from calopd.core.errors import ConfigError
from calopd.rundir.digests import sha256
from calopd.rundir.files import read_json, write_json
from calopd.rundir.layout import RunDir


def keep_problems(run_dir: RunDir, train: Path, count: int) -> None:
    """Record the problems of a new run, or compare those of a run that goes on."""
    if not run_dir.problems.exists():
        write_json(run_dir.problems, {"sha256": sha256(train), "problems": count})
    check_problems(run_dir, train)


def check_problems(run_dir: RunDir, train: Path) -> None:
    """Refuse a file of problems that has changed since the run began."""
    recorded: dict[str, Any] | None = read_json(run_dir.problems)
    if recorded is not None and train.is_file() and sha256(train) != recorded["sha256"]:
        raise ConfigError(
            f"data.train = {str(train)!r} has changed since the run {run_dir} began with {recorded['problems']:,} "
            "problems of it: restore the file, or start a new run"
        )


def count_problems(run_dir: RunDir) -> int | None:
    """The number of problems; None if the run has not recorded it."""
    recorded: dict[str, Any] | None = read_json(run_dir.problems)
    return None if recorded is None else int(recorded["problems"])
