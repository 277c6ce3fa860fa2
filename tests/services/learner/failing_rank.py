"""A program of two ranks for the launcher: rank 1 finds an error of the user, rank 0 fails as a consequence."""

import fcntl
import os
import sys
import time
from pathlib import Path

from calopd.core.errors import ConfigError
from calopd.local.entry_point import guarded


def main() -> None:
    error = Path(os.environ["CALOPD_ERROR_FILE"])
    with error.with_suffix(".lock").open("w") as held:
        if os.environ["RANK"] == "1":
            # Held until this process has ended: only then may rank 0 fail.
            fcntl.flock(os.dup(held.fileno()), fcntl.LOCK_EX)
            raise ConfigError("found by rank 1")
        while not error.exists():
            time.sleep(0.01)
        fcntl.flock(held, fcntl.LOCK_EX)
    sys.exit(1)


if __name__ == "__main__":
    guarded(main)
