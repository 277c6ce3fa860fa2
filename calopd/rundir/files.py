"""Files and folders that are either complete or absent, whatever is killed and whenever the power fails.

Everything is written under a temporary name, synced to the disk (the files and the folders that list them) and renamed
into place. Only what can be made again is not synced.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calopd.core.errors import ConfigError

TEMPORARY, REPLACED = ".tmp", ".old"


@contextmanager
def atomic_file(file: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; at the end of the block it becomes `file`, after an error it is removed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(file, TEMPORARY)
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(file.parent)


@contextmanager
def atomic_folder(target: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield an empty temporary folder to fill; at the end of the block it becomes `target`.

    Without `durable` nothing is synced to the disk: a power failure may damage the folder, a kill cannot.

    An existing target is removed only after the new one is in place. After an error, or when the block itself removes
    the temporary folder, the target stays as it was.
    """
    temporary, replaced = temporary_folder(target), _beside(target, REPLACED)
    _restore(target, replaced)  # after a kill between the two renames below
    for leftover in (temporary, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if not temporary.exists():
            return
        if durable:
            sync(*temporary.rglob("*"), temporary)
        if target.exists():
            os.rename(target, replaced)
        os.rename(temporary, target)
    except BaseException:
        _restore(target, replaced)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if durable:
        sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _restore(target: Path, replaced: Path) -> None:
    """Move the replaced folder back if the new one did not take its place: there is no other copy."""
    if replaced.exists() and not target.exists():
        os.rename(replaced, target)


def temporary_folder(target: Path) -> Path:
    """The folder that `atomic_folder(target)` yields, for other processes that write into it too."""
    return _beside(target, TEMPORARY)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def sync(*paths: Path) -> None:
    """Flush files and folders to the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(file: Path, text: str) -> Path:
    with atomic_file(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return file


def write_json(file: Path, value: Any) -> None:
    with atomic_file(file) as temporary, temporary.open("w", encoding="utf-8") as out:
        json.dump(value, out, indent=1)


def read_json(file: Path) -> Any:
    """The value in a JSON file; None if there is no such file."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def write_lines(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a JSONL file."""
    with atomic_file(file) as temporary, temporary.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file; an incomplete last line, which a kill may leave, is ignored."""
    if not file.exists():
        return []
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True), 1):
        if line.endswith("\n"):
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ConfigError(
                    f"{file}, line {number} is damaged ({error}): restore the file from a backup, or delete the line"
                ) from None
    return rows


def keep_lines_before(file: Path, step: int) -> None:
    """Drop the lines of steps that will be repeated."""
    write_lines(file, [row for row in read_lines(file) if row["step"] < step])


def append_line(file: Path, row: dict[str, Any]) -> None:
    """Add one line to a JSONL file; it is on the disk when this returns."""
    if not file.exists():
        write_text(file, "")
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")
        out.flush()
        os.fsync(out.fileno())


class Journal:
    """A JSONL file with one writer, each line written at once: a kill loses at most the line being written.

    An incomplete last line is cut off when the journal is opened.
    """

    def __init__(self, file: Path) -> None:
        if not file.exists():
            write_text(file, "")
        self.rows = read_lines(file)
        """The lines that were there when the journal was opened."""
        self._file = os.open(file, os.O_RDWR | os.O_APPEND)
        os.ftruncate(self._file, file.read_bytes().rfind(b"\n") + 1)

    def add(self, row: dict[str, Any]) -> None:
        line = (json.dumps(row) + "\n").encode()
        while line:
            line = line[os.write(self._file, line) :]

    def close(self) -> None:
        os.close(self._file)
