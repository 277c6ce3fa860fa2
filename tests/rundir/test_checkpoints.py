"""Checkpoints that were damaged or planted: nothing of them is loaded, and nothing of them is executed."""

import os
import pickle
import resource
import shutil
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING as Memory

from calopd.core.errors import CheckpointDamaged
from calopd.rundir import checkpoints
from calopd.rundir.checkpoint_tensors import METADATA, Reader, load_tensors
from calopd.rundir.layout import RunDir
from calopd.rundir.safe_pickle import RestrictedPickle
from tests.exploits import Exploit

DATA = "__0_0.distcp"


def state(value: float = 0.0, rate: Any = 0.0) -> dict[str, Any]:
    weights = {"model": {"a": torch.full((64, 8), value), "b": torch.full((3,), value, dtype=torch.bfloat16)}}
    return {**weights, "optimizer": {"step": torch.tensor(value), "groups": [{"lr": rate, "betas": (0.9, rate)}]}}


def sign(checkpoint: Path) -> None:
    """Write the manifest of the files that are there."""
    (checkpoint / checkpoints.MANIFEST).unlink(missing_ok=True)
    checkpoints.write_manifest(checkpoint, checkpoints.digests_of(checkpoint.iterdir()))


def save(run: RunDir, step: int, **values: Any) -> Path:
    checkpoint = run.checkpoint(step)
    dcp.save(state(**values), checkpoint_id=checkpoint, no_dist=True)
    checkpoints.write_record(checkpoint, checkpoints.Record(step=step))
    sign(checkpoint)
    return checkpoint


def newest_intact(run: RunDir) -> Path | None:
    """The last item of the search."""
    return ([None, *checkpoints.newest_intact(run)])[-1]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Two checkpoints."""
    run = RunDir(tmp_path / "run")
    save(run, 4, value=4.0, rate=0.5)
    save(run, 8, value=8.0, rate=0.25)
    return run


def test_a_whole_checkpoint_is_restored(run):
    newest = newest_intact(run)
    assert newest == run.checkpoint(8)
    loaded = state(0.0, rate=0.0)
    load_tensors(loaded, newest, alone=True)
    expected = state(8.0, rate=0.25)
    assert torch.equal(loaded["model"]["a"], expected["model"]["a"])
    assert torch.equal(loaded["model"]["b"], expected["model"]["b"])
    assert loaded["optimizer"]["groups"] == expected["optimizer"]["groups"]


def flip_a_bit(checkpoint: Path) -> None:
    content = bytearray((checkpoint / DATA).read_bytes())
    content[len(content) // 2] ^= 1 << 6
    (checkpoint / DATA).write_bytes(content)


def truncate(checkpoint: Path) -> None:
    os.truncate(checkpoint / DATA, (checkpoint / DATA).stat().st_size // 2)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "does not match the manifest": flip_a_bit,
    f"{DATA} does not match": truncate,
    f"lacks {DATA}": lambda checkpoint: (checkpoint / DATA).unlink(),
    "lacks record.json": lambda checkpoint: (checkpoint / checkpoints.RECORD).unlink(),
    "record.json does not match": lambda checkpoint: (checkpoint / checkpoints.RECORD).write_text('{"step": 9}'),
    "has no readable digests.json": lambda checkpoint: (checkpoint / checkpoints.MANIFEST).write_text("{"),
    "no readable digests.json": lambda checkpoint: (checkpoint / checkpoints.MANIFEST).write_text("[" * 100_000),
    "holds .__1.metadata, which": lambda checkpoint: (checkpoint / ".__1.metadata").write_bytes(b""),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_the_checkpoint_before_a_damaged_one_is_used(run, reason, caplog):
    DAMAGES[reason](run.checkpoint(8))
    assert newest_intact(run) == run.checkpoint(4)
    assert reason in caplog.text
    assert "moved aside, the checkpoint before it is used" in caplog.text
    assert sorted(folder.name for folder in run.checkpoints.iterdir()) == ["000004", "000008.damaged"]
    assert checkpoints.steps(run) == [4]


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_run_whose_checkpoints_are_all_damaged_never_starts_from_the_first_step(run, reason):
    """Not at the second start either: Compose makes it by itself."""
    DAMAGES[reason](run.checkpoint(4))
    flip_a_bit(run.checkpoint(8))
    for _ in range(3):
        with pytest.raises(
            CheckpointDamaged, match="is intact: restore one from a backup, or start the run again with"
        ):
            newest_intact(run)
        assert sorted(folder.name for folder in run.checkpoints.iterdir()) == ["000004", "000008"]
    assert newest_intact(RunDir(run.path.parent / "new")) is None


def test_a_run_whose_only_checkpoint_was_moved_aside_never_starts_from_the_first_step(run):
    flip_a_bit(run.checkpoint(8))
    assert newest_intact(run) == run.checkpoint(4)
    shutil.rmtree(run.checkpoint(4))
    with pytest.raises(CheckpointDamaged, match="is intact"):
        newest_intact(run)


def test_several_damaged_checkpoints_are_moved_aside_and_kept_until_the_next_time(run):
    save(run, 12)
    for step in (8, 12):
        truncate(run.checkpoint(step))
    assert newest_intact(run) == run.checkpoint(4)
    kept = ["000004", "000008.damaged", "000012.damaged"]
    assert sorted(folder.name for folder in run.checkpoints.iterdir()) == kept
    assert newest_intact(run) == run.checkpoint(4)
    assert sorted(folder.name for folder in run.checkpoints.iterdir()) == kept


def test_planted_metadata_is_not_in_the_manifest(run, tmp_path):
    """The exploit: torch unpickles the metadata of a checkpoint before anything else."""
    (run.checkpoint(8) / METADATA).write_bytes(pickle.dumps(Exploit(tmp_path / "ran")))
    with pytest.raises(CheckpointDamaged, match=f"{METADATA} does not match the manifest"):
        checkpoints.verify(run.checkpoint(8))
    with pytest.raises(CheckpointDamaged, match=r"posix.mkdir is not allowed here: nothing was executed"):
        load_tensors(state(), run.checkpoint(8), alone=True)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(AttributeError):
        dcp.FileSystemReader(run.checkpoint(8)).read_metadata()
    assert (tmp_path / "ran").exists(), "the exploit works where it is let in"


def test_a_checkpoint_of_debians_python_is_read(run, monkeypatch):
    """Python 3.11.2 writes members of enums as getattr(enum, name)."""
    monkeypatch.setattr(Enum, "__reduce_ex__", lambda self, protocol: (getattr, (type(self), self.name)))
    shutil.rmtree(run.checkpoint(8))
    checkpoint = save(run, 8, value=8.0)
    assert b"getattr" in (checkpoint / METADATA).read_bytes()
    loaded = state()
    load_tensors(loaded, checkpoint, alone=True)
    assert torch.equal(loaded["model"]["a"], state(8.0)["model"]["a"])


class Attribute:
    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return getattr, self.arguments


@pytest.mark.parametrize("arguments", [(Enum, "__subclasses__"), (Memory, "mro"), ("text", "format"), (Memory, ["A"])])
def test_getattr_gives_members_of_enums_and_nothing_else(arguments):
    allowed = {("enum", "Enum"), (Memory.__module__, Memory.__name__)}
    assert RestrictedPickle(allowed).loads(pickle.dumps(Attribute(Memory, "TORCH_PRESERVE_FORMAT"))).value == 2
    with pytest.raises(pickle.UnpicklingError):
        RestrictedPickle(allowed).loads(pickle.dumps(Attribute(*arguments)))


def test_a_planted_checkpoint_with_a_manifest_of_its_own_runs_no_code(run, tmp_path):
    """Values that are not tensors are pickles too, and an attacker can write a manifest."""
    shutil.rmtree(run.checkpoint(8))
    checkpoint = save(run, 8, value=8.0, rate=Exploit(tmp_path / "ran"))
    checkpoints.verify(checkpoint)
    with pytest.raises(CheckpointDamaged, match="is refused") as refused:
        load_tensors(state(), checkpoint, alone=True)
    assert "posix.mkdir" in str(refused.value)
    assert not (tmp_path / "ran").exists()


def test_a_damaged_byte_of_the_metadata_reserves_no_memory(run):
    """Seen: one flipped bit made a memo index of a billion, for which the unpickler took 19 GB."""
    metadata = run.checkpoint(8) / METADATA
    metadata.write_bytes(b"\x80\x02Nr" + (2**30).to_bytes(4, "little") + b".")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointDamaged, match="memo index 1073741824 in a pickle of 9 bytes"):
        Reader(run.checkpoint(8)).read_metadata()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "kilobytes"


def test_the_metadata_of_every_data_type_is_read(tmp_path):
    types = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
    tensors = {str(dtype): torch.zeros(2, dtype=dtype) for dtype in types}
    dcp.save(tensors, checkpoint_id=tmp_path, no_dist=True)
    assert Reader(tmp_path).read_metadata().state_dict_metadata.keys() == tensors.keys()
