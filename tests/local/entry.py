"""An entry point for tests of the supervisor: python -m tests.local.entry ACTION [FILE]"""

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path

from calopd.core.errors import ConfigError, EngineFailed, QueueUnavailable
from calopd.local.entry_point import guarded, tell_progress


def main() -> None:
    action, *rest = sys.argv[1:]
    if action == "config-error":
        raise ConfigError("run.steps is -1, expected at least 1")
    if action == "crash-with-error-line":
        print("error: something that only looks like a user's error", flush=True)
        sys.exit(1)
    if action == "killed-after-error-line":
        print("error: something that only looks like a user's error", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "crash-for-a-reason":
        raise ValueError("the method returned [3] advantages for 4 tokens")
    if action == "crash-at-an-address":
        raise ValueError(f"ticket {os.getpid()} is lost at 0x{os.getpid() + 10**9:x}")
    if action == "no-server":
        raise QueueUnavailable("Redis does not answer")
    if action == "failed-engine":
        raise EngineFailed("the sampling engine has failed")
    if action == "full-disk":
        raise OSError(errno.ENOSPC, "No space left on device", "checkpoints/000001")
    if action == "crash-once":
        if not Path(rest[0]).exists():
            Path(rest[0]).touch()
            raise RuntimeError("a crash")
    elif action == "environment":
        Path(rest[0]).write_text(json.dumps(dict(os.environ)))
    elif action in ("sleep", "work"):
        if action == "work":
            tell_progress()
        Path(rest[0]).touch()
        time.sleep(600)


if __name__ == "__main__":
    guarded(main)
