"""Tensors of a checkpoint, read with torch DCP without executing what its pickles may contain.

DCP stores its metadata, and every value that is not a tensor, as pickles. Only the types that they consist of
are built.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem

from calopd.core.errors import CheckpointDamaged
from calopd.rundir.safe_pickle import RestrictedPickle

METADATA = ".metadata"
_DATA_TYPES = {("torch", name) for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
METADATA_TYPES = frozenset(
    _DATA_TYPES
    | {(metadata.__name__, name) for name in (*metadata.__all__, "_MEM_FORMAT_ENCODING")}
    | {
        (filesystem.__name__, "_StorageInfo"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
    }
)
"""Everything that the metadata of a checkpoint consists of."""


class Reader(dcp.FileSystemReader):
    """DCP's reader, with a limited unpickler for the metadata."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        try:
            found = RestrictedPickle(METADATA_TYPES).loads((Path(self.path) / METADATA).read_bytes())
        except Exception as error:  # damaged pickles raise errors of many types
            raise CheckpointDamaged(f"the metadata of {self.path} is refused: {error}") from None
        if not isinstance(found, metadata.Metadata):
            raise CheckpointDamaged(f"the metadata of {self.path} is refused: it is a {type(found).__name__}")
        found.storage_meta = found.storage_meta or metadata.StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Planner(DefaultLoadPlanner):
    """DCP's planner, which reads values that are not tensors with torch's own limited unpickler."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        try:
            loaded = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointDamaged(f"{read_item.dest_index.fqn} of a checkpoint is refused: {error}") from None
        set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], loaded)


def load_tensors(state: dict[str, Any], checkpoint: Path, *, alone: bool = False) -> None:
    """Fill `state` from a checkpoint that was verified: by all ranks together, or by this process `alone`."""
    reader = Reader(checkpoint)
    reader.read_metadata()  # refused here with its reason, which DCP would replace
    try:
        dcp.load(state, storage_reader=reader, planner=_Planner(), no_dist=alone)
    except CheckpointException as error:  # no Exception: what a rank raised is inside
        for cause, _ in error.failures.values():
            if isinstance(cause, CheckpointDamaged):
                raise cause from None
        raise
