"""Claims: several hosts work on one experiment, each on the next job that is free.

A claim is a lock on a file. The kernel releases it when its holder ends, however it ends. Hosts need a shared directory
whose locks reach across them (NFSv4, Lustre with `flock`).
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def claimed(file: Path) -> Iterator[bool]:
    """Hold the claim for the length of the block; False if another process holds it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
