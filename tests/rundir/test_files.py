"""Files and folders are complete or absent, and on the disk when they are there."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from calopd.core.errors import ConfigError
from calopd.rundir.files import Journal, append_line, atomic_file, atomic_folder, read_lines, write_json, write_text
from tests.services.processes import ROOT


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is flushed to the disk, in order; renames stand among them."""
    events: list[str] = []
    fsync, replace, rename = os.fsync, os.replace, os.rename

    def recording_fsync(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def recording(move):
        def moved(source: Path, target: Path) -> None:
            events.append(f"{Path(source).name} -> {Path(target).name}")
            move(source, target)

        return moved

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording(replace))
    monkeypatch.setattr(os, "rename", recording(rename))
    return events


def test_a_file_and_its_folder_are_synced_around_the_rename(tmp_path, synced):
    write_json(tmp_path / "here" / "a.json", {"a": 1})
    assert synced == ["a.json.tmp", "a.json.tmp -> a.json", "here"]


def test_a_folder_is_synced_with_all_that_it_holds_before_the_rename(tmp_path, synced):
    with atomic_folder(tmp_path / "000001") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "weights").write_text("w")
    assert sorted(synced[:3]) == ["000001.tmp", "inner", "weights"]
    assert synced[3:] == ["000001.tmp -> 000001", tmp_path.name]


def test_an_existing_folder_goes_only_after_the_new_one_is_in_place(tmp_path, synced):
    for content in ("old", "new"):
        with atomic_folder(tmp_path / "model") as folder:
            (folder / "weights").write_text(content)
    assert synced[-3:] == ["model -> model.old", "model.tmp -> model", tmp_path.name]
    assert (tmp_path / "model" / "weights").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_appended_line_is_synced(tmp_path, synced):
    append_line(tmp_path / "lines.jsonl", {"step": 0})
    assert synced == ["lines.jsonl.tmp", "lines.jsonl.tmp -> lines.jsonl", tmp_path.name, "lines.jsonl"]
    assert read_lines(tmp_path / "lines.jsonl") == [{"step": 0}]


@pytest.mark.parametrize("line", [b'{"step": 1', b'{"step": \xb1}', b"\0\0\0"])
def test_a_damaged_line_is_named(tmp_path, line):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 0}\n' + line + b'\n{"step": 2}\n')
    with pytest.raises(ConfigError, match=r"metrics.jsonl, line 2 is damaged .*: restore the file from a backup"):
        read_lines(file)
    file.write_bytes(b'{"step": 0}\n' + line)
    assert read_lines(file) == [{"step": 0}], "a kill may leave an incomplete last line"


def test_a_journal_is_created_durably(tmp_path, synced):
    Journal(tmp_path / "samples" / "0.jsonl").close()
    assert synced[-1] == "samples"


def half_a_file(root: Path) -> None:
    with atomic_file(root / "file") as temporary:
        temporary.write_text("half")
        raise RuntimeError("full")


def half_a_folder(root: Path) -> None:
    with atomic_folder(root / "folder") as folder:
        (folder / "f").write_text("half")
        raise RuntimeError("full")


def test_an_error_leaves_the_old_file_and_folder(tmp_path):
    write_text(tmp_path / "file", "old")
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "f").write_text("old")
    for fail in (half_a_file, half_a_folder):
        with pytest.raises(RuntimeError, match="full"):
            fail(tmp_path)
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "f").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_an_error_between_the_renames_restores_the_old_folder(tmp_path, monkeypatch):
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "f").write_text("old")
    rename = os.rename

    def full(source: Path, target: Path) -> None:
        if source.name == "folder.tmp":
            raise OSError("full")
        rename(source, target)

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError, match="full"), atomic_folder(tmp_path / "folder") as folder:
        (folder / "f").write_text("new")
    assert (tmp_path / "folder" / "f").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


KILLED = """
import os, signal, sys
from pathlib import Path
from calopd.rundir.files import atomic_file, atomic_folder

root, kind, moment = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
calls = 0

def counted(move):
    def maybe_killed(*paths):
        global calls
        calls += 1
        if calls == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        move(*paths)
    return maybe_killed

os.rename, os.replace = counted(os.rename), counted(os.replace)
if kind == "file":
    with atomic_file(root / "target") as temporary:
        temporary.write_text("new")
else:
    with atomic_folder(root / "target") as folder:
        (folder / "f").write_text("new")
"""


def killed_writer(root: Path, kind: str, moment: int) -> None:
    """A process that is killed at its `moment`-th rename."""
    command = [sys.executable, "-c", KILLED, str(root), kind, str(moment)]
    assert subprocess.run(command, cwd=ROOT).returncode == -signal.SIGKILL


def test_a_kill_between_writing_and_renaming_leaves_the_old_file(tmp_path):
    write_text(tmp_path / "target", "old")
    killed_writer(tmp_path, "file", 1)
    assert (tmp_path / "target").read_text() == "old"
    write_text(tmp_path / "target", "newer")
    assert (tmp_path / "target").read_text() == "newer"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("moment", [1, 2])
def test_a_kill_around_the_renames_never_loses_the_old_folder(tmp_path, moment):
    with atomic_folder(tmp_path / "target") as folder:
        (folder / "f").write_text("old")
    killed_writer(tmp_path, "folder", moment)
    if moment == 1:
        assert (tmp_path / "target" / "f").read_text() == "old"
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "target"):
        raise RuntimeError("the next writer fails")
    assert (tmp_path / "target" / "f").read_text() == "old"
    with atomic_folder(tmp_path / "target") as folder:
        (folder / "f").write_text("newer")
    assert (tmp_path / "target" / "f").read_text() == "newer"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
