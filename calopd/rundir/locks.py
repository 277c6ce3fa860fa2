"""Locks on files: the kernel releases them when their holder ends, however it ends."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from calopd.core.errors import ConfigError
from calopd.rundir.layout import RunDir

POLL_SECONDS = 0.2


@contextmanager
def exclusive(file: Path, refusal: str, *, keep_in_exec: bool = False) -> Iterator[None]:
    """Hold the lock for the length of the block; if another process holds it, raise `refusal`.

    With `keep_in_exec` a program that replaces this one in the block holds it until it ends.
    """
    with file.open("a") as lock:
        os.set_inheritable(lock.fileno(), keep_in_exec)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(refusal) from None
        yield


def is_locked(file: Path) -> bool:
    """Whether another process holds the lock; nothing is created."""
    try:
        with file.open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def shared(file: Path) -> Iterator[None]:
    """Hold the lock together with others for the length of the block."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def wait_until_unlocked(file: Path) -> None:
    """Return once nobody holds the lock."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def single_learner(run_dir: RunDir, wait_seconds: float = 30.0) -> IO[str]:
    """The lock of a run's only learner, held until the file is closed; an earlier learner gets some time to end."""
    lock = run_dir.learner_lock.open("w")
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConfigError(f"another learner works on {run_dir}: two would undo each other's steps") from None
            time.sleep(POLL_SECONDS)
