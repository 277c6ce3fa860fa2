"""What the entry points share: parse first, import the heavy things later, one clear line for a user's error."""

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from calopd.core import environment

if TYPE_CHECKING:
    from calopd.config import Config

CONFIG_ERROR_EXIT = 78
"""EX_CONFIG of sysexits: starting it again cannot help."""


DIE_WITH_PARENT = environment.DIE_WITH_PARENT.name
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it is gone, even if that was killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def service_main(service: str, description: str | None) -> "Config":
    """The configuration of a service from its command line."""
    parser = argparse.ArgumentParser(prog=f"python -m services.{service}", description=description)
    parser.add_argument("--config", type=Path, required=True, help="the run's TOML")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one setting")
    arguments = parser.parse_args()
    if os.environ.get(DIE_WITH_PARENT):
        die_with_parent()

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
    """Run an entry point; errors a user can cause become one line and their own exit code."""
    from calopd.core.errors import CalopdError

    try:
        main()
    except CalopdError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(CONFIG_ERROR_EXIT)
    except KeyboardInterrupt:
        sys.exit(130)
