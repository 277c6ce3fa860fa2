"""Checkpoints of the student and its optimizer, written and read with torch DCP by all ranks together.

A checkpoint is copied to the memory of the host while the ranks wait, and written by a thread of each rank while they
train on. A thread, not a process: the copy then stays private to the rank, and needs no shared memory of its size.
"""

import copy
import errno
import logging
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful

from calopd.core.errors import CheckpointFailed
from calopd.rundir.checkpoint_tensors import METADATA, load_tensors
from calopd.rundir.checkpoints import RECORD, Record, digests_of, prune, read_record, write_manifest, write_record
from calopd.rundir.files import atomic_folder, temporary_folder
from calopd.rundir.layout import RunDir
from calopd.tracking.trace import span
from services.learner.ranks import Ranks
from services.learner.student import Student

log = logging.getLogger(__name__)

STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
"""Errors of the disk that a restart does not fix."""
TORCH_WRITER = "inline_container"
"""In the message of torch's writer if the file does not take its bytes; the error of the disk itself is lost on the way
between ranks."""


class _State(Stateful):
    """Model and optimizer in the form that DCP expects."""

    def __init__(self, student: Student, optimizer: torch.optim.Optimizer) -> None:
        self._student, self._optimizer = student, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._student, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self._student, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


@dataclass(frozen=True, slots=True)
class Durable:
    """A checkpoint that is complete and on the disk."""

    step: int
    seconds: float
    """From the start of the copy to the end of the write."""


class Checkpointer:
    """Writes checkpoints in the background, one at a time. Every rank makes the same calls in the same order."""

    def __init__(self, run_dir: RunDir, ranks: Ranks, keep: int) -> None:
        self._run_dir, self._ranks, self._keep = run_dir, ranks, keep
        on_gpu = ranks.device.type == "cuda"
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=on_gpu,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=on_gpu,
            )
        )
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[Durable] | None = None

    def begin(self, student: Student, optimizer: torch.optim.Optimizer, record: Record) -> None:
        """Copy the state and start to write it; when this returns, the state may change again."""
        assert self._writing is None, "call `finished(wait=True)` first"
        start, target = time.monotonic(), self._run_dir.checkpoint(record.step)
        folder, closing = temporary_folder(target), ExitStack()
        if self._ranks.rank == 0:
            closing.enter_context(atomic_folder(target))
        self._ranks.broadcast(None)  # rank 0 has created the folder
        written = dcp.async_save(
            {"state": _State(student, optimizer)},
            checkpoint_id=folder,
            process_group=self._ranks.checkpoints,
            async_stager=self._stager,
        )
        log.info("checkpoint of step %d is copied, %.2f s; it is written in the background", record.step, _since(start))
        record = copy.deepcopy(record)
        self._writing = self._thread.submit(self._finish, cast("Future[Any]", written), closing, folder, record, start)

    def _finish(
        self, written: "Future[Any]", closing: ExitStack, folder: Path, record: Record, start: float
    ) -> Durable:
        """In the background: wait until all ranks have written, then rank 0 renames the folder into place."""
        with span("checkpoint: write", step=record.step), closing:
            written.result()
            # Each rank vouches for what it has written; the thread of DCP is done with this group.
            own = digests_of(folder.glob(f"__{self._ranks.rank}_*"))
            digests = self._ranks.gather(own, self._ranks.checkpoints)
            if self._ranks.rank == 0:
                write_record(folder, record)
                written_once = digests_of([folder / RECORD, folder / METADATA])
                write_manifest(folder, dict(chain(written_once.items(), *(part.items() for part in digests))))
        if self._ranks.rank == 0:
            log.info("checkpoint of step %d is durable, after %.2f s", record.step, _since(start))
            prune(self._run_dir, self._keep)
        return Durable(record.step, _since(start))

    def finished(self, *, wait: bool = False) -> Durable | None:
        """The checkpoint that was written since the last call, if there is one; raises if it could not be written."""
        if self._writing is None or not (wait or self._writing.done()):
            return None
        writing, self._writing = self._writing, None
        try:
            return writing.result()
        except BaseException as error:  # CheckpointException is no Exception
            if (cause := storage_error(error)) is not None:
                free = shutil.disk_usage(self._run_dir.path).free / 1e9
                raise CheckpointFailed(
                    f"cannot write a checkpoint to {self._run_dir.checkpoints}: {cause}. {free:.1f} GB are free. Free "
                    "space or lower learner.keep_checkpoints, then resume the run"
                ) from error
            raise RuntimeError("a checkpoint could not be written") from error


def storage_error(error: BaseException) -> str | None:
    """The refusal of the disk behind an error of a save, on whichever rank it occurred; None for any other cause."""
    failures = error.failures.values() if isinstance(error, CheckpointException) else [(error, None)]
    for cause, _ in failures:
        if isinstance(cause, OSError) and cause.errno in STORAGE_ERRORS:
            return str(cause)
        if isinstance(cause, RuntimeError) and TORCH_WRITER in str(cause):
            return "a file could not be written to its end: the disk may be full or a quota reached"
    return None


def load(checkpoint: Path, student: Student, optimizer: torch.optim.Optimizer) -> Record:
    """Restore a checkpoint that was written by any number of ranks and is verified."""
    load_tensors({"state": _State(student, optimizer)}, checkpoint)
    return read_record(checkpoint)


def _since(start: float) -> float:
    return time.monotonic() - start
