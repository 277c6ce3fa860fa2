"""Shared by all entry points: parse the arguments before heavy imports, report a user's error in one line."""

import argparse
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from calopd.core.environment import DIE_WITH_PARENT, ERROR_FILE
from calopd.core.errors import CalopdError
from calopd.models.devices import set_process_environment

if TYPE_CHECKING:
    from calopd.config import Config

CONFIG_ERROR_EXIT = 78
"""Exit code of an error that a restart cannot fix (EX_CONFIG of sysexits.h); any other failure may be retried."""
INTERRUPTED_EXIT = 130

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to terminate this process when its parent ends, even if the parent is killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def die_with_launcher() -> None:
    """End with the parent if the launcher asked for it."""
    if os.environ.get(DIE_WITH_PARENT.name):
        die_with_parent()


def service_main(service: str, description: str | None) -> "Config":
    """The configuration of a service from its command line."""
    parser = argparse.ArgumentParser(prog=f"python -m services.{service}", description=description)
    parser.add_argument("--config", type=Path, required=True, help="the run's TOML")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one setting")
    arguments = parser.parse_args()
    die_with_launcher()

    from calopd.config import load_config
    from calopd.tracking.log_format import setup_logging

    setup_logging(service)
    config = load_config(arguments.config, arguments.set)
    counts = {"teacher_scorer": config.teacher.threads, "rollout": config.rollout.threads}
    threads = counts.get(service, config.learner.threads)
    if threads and "OMP_NUM_THREADS" not in os.environ:
        # OpenMP reads it once, at import, and all threads of vLLM must agree on it.
        os.environ["OMP_NUM_THREADS"] = str(threads)
        os.execv(sys.executable, [sys.executable, "-m", f"services.{service}", *sys.argv[1:]])
    return config


def guarded(main: Callable[[], None]) -> None:
    """Run an entry point; an error that a user can fix becomes one line and exit code 78.

    The message also goes to the launcher, in the file that it names in the environment.
    """
    set_process_environment()
    try:
        main()
    except CalopdError as error:
        print(f"error: {error}", file=sys.stderr)
        _tell_launcher(str(error))
        sys.exit(CONFIG_ERROR_EXIT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT)


def _tell_launcher(message: str) -> None:
    """Write the error file, unless another rank of the same service was faster; the exit code counts in any case."""
    if file := os.environ.get(ERROR_FILE.name):
        with contextlib.suppress(OSError), Path(file).open("x", encoding="utf-8") as out:
            out.write(message)
