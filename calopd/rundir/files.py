"""A run's directory: config.toml, run.json, metrics.jsonl, checkpoints/, policies/, logs/, model/, report.html."""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from calopd.core.errors import ConfigError


def ensure_run_id(run_dir: Path) -> str:
    """The run's id, made at its first start; it keeps two runs of one name apart in a shared Redis."""
    file = run_dir / "run.json"
    if not file.exists():
        write_json(file, {"id": f"{run_dir.name}-{secrets.token_hex(4)}", "started": time.time()})
    return str(json.loads(file.read_text())["id"])


def read_run_id(run_dir: Path, wait_seconds: float = 600.0) -> str:
    """The id of a run that another process starts; waits for it."""
    deadline = time.monotonic() + wait_seconds
    while not (run_dir / "run.json").exists():
        if time.monotonic() > deadline:
            raise ConfigError(
                f"no run.json in {run_dir} after {wait_seconds:.0f} s: is the learner up, is the volume shared?"
            )
        time.sleep(0.2)
    return ensure_run_id(run_dir)


def write_json(file: Path, value: Any) -> None:
    """Write a whole file or none of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(file.name + ".aside")
    with aside.open("w", encoding="utf-8") as out:
        json.dump(value, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    os.replace(aside, file)


def write_text(file: Path, text: str) -> Path:
    """Write a whole file or none of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(file.name + ".aside")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, file)
    return file


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file; a last line cut short by a kill does not count."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def write_lines(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a whole JSONL file or none of it."""
    aside = file.with_name(file.name + ".aside")
    with aside.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)
    os.replace(aside, file)


def keep_lines_before(file: Path, step: int) -> None:
    """Drop the lines of steps that will be done again."""
    write_lines(file, [row for row in read_lines(file) if row["step"] < step])


def append_line(file: Path, row: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")


class Journal:
    """Lines that are on the disk one by one: a kill loses at most the line that was being written.

    One process writes; what a kill left of a half-written line is cut off before the first line is added.
    """

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.rows = read_lines(file)
        """What was there when the journal was opened."""
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._file, file.read_bytes().rfind(b"\n") + 1)

    def add(self, row: dict[str, Any]) -> None:
        line = (json.dumps(row) + "\n").encode()
        while line:
            line = line[os.write(self._file, line) :]

    def close(self) -> None:
        os.close(self._file)


def single_learner(run_dir: Path, wait_seconds: float = 30.0) -> IO[str]:
    """A lock that one learner of a run holds while it lives; an earlier one gets a moment to end."""
    lock = (run_dir / ".learner.lock").open("w")
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConfigError(f"another learner works on {run_dir}: two would undo each other's steps") from None
            time.sleep(0.2)
