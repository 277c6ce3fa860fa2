"""Checkpoints on disk: what does not match its manifest is refused, and metadata are read without executing them."""

import json
import random
import shutil
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from calopd.core.errors import CheckpointDamaged
from calopd.rundir import checkpoints
from calopd.rundir.checkpoint_tensors import METADATA, Reader
from tests.fuzz.mutations import damaged, varied
from tests.fuzz.surface import Surface


class Checkpoints(Surface):
    """One or two files of a whole checkpoint are damaged; some inputs are damaged metadata behind a right manifest."""

    name, share = "checkpoints", 2

    def __init__(self, folder: Path) -> None:
        self._valid, self._spoiled = folder / "checkpoint", folder / "spoiled-checkpoint"
        dcp.save({"model": {"a": torch.randn(20, 5)}}, checkpoint_id=self._valid, no_dist=True)
        checkpoints.write_record(self._valid, checkpoints.Record(step=3))
        checkpoints.write_manifest(self._valid, checkpoints.digests_of(self._valid.iterdir()))
        shutil.copytree(self._valid, self._spoiled)
        self._names = sorted(file.name for file in self._valid.iterdir())
        self._changed: list[str] = []

    def try_one(self, draw: random.Random) -> str:
        for name in self._changed:
            shutil.copyfile(self._valid / name, self._spoiled / name)
        vouched = draw.random() < 0.4
        self._changed = [METADATA] if vouched else draw.sample(self._names, draw.choice((1, 1, 2)))
        for name in self._changed:
            data = (self._valid / name).read_bytes()
            if name == checkpoints.MANIFEST and draw.random() < 0.5:
                data = json.dumps(varied(json.loads(data), draw)).encode("utf-8", "replace")
            else:
                data = damaged(data, draw)
            (self._spoiled / name).write_bytes(data)
        try:
            if not vouched:
                checkpoints.verify(self._spoiled)
                same = all((self._spoiled / n).read_bytes() == (self._valid / n).read_bytes() for n in self._names[1:])
                assert same or self._changed == [checkpoints.MANIFEST], "a damaged checkpoint was accepted"
            Reader(self._spoiled).read_metadata()
        except CheckpointDamaged:
            return "refused"
        return "accepted"

    def close(self) -> None:
        checkpoints.verify(self._valid)
        Reader(self._valid).read_metadata()
