"""Shared by all entry points: parse the arguments before heavy imports, report a user's error in one line."""

import contextlib
import ctypes
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from calopd.core.environment import DIE_WITH_PARENT, ERROR_FILE, PROGRESS_FILE
from calopd.core.errors import CalopdError, EngineFailed, QueueLoginRefused, QueueUnavailable, ResultsLost
from calopd.core.one_line_parser import OneLineParser
from calopd.models.devices import set_process_environment

if TYPE_CHECKING:
    from calopd.config import Config

CONFIG_ERROR_EXIT = 78
"""Exit code of an error that a restart cannot fix (EX_CONFIG of sysexits.h); any other failure may be retried."""
TEMPORARY_EXIT = 75
"""Exit code of a server that does not answer (EX_TEMPFAIL): the same command may work later."""
RESTART_EXIT = 70
"""Exit code of an engine that failed or hangs (EX_SOFTWARE): a restart may fix it."""
INTERRUPTED_EXIT = 130
BROKEN_PIPE_EXIT = 141

QUEUE_SECONDS = 4.0
"""Time that the server of the queue has to answer when a service starts."""

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to terminate this process when its parent ends, even if the parent is killed.

    The kernel says nothing of a parent that has ended before. A new process names its `parent`, and ends if it has
    another one by now.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if parent is not None and os.getppid() != parent:
            os._exit(RESTART_EXIT)


def ends_with_this_process() -> Callable[[], None]:
    """The `preexec_fn` of a child process that ends when this one does."""
    return partial(die_with_parent, os.getpid())


def die_with_launcher() -> None:
    """End with the parent if the launcher asked for it."""
    if os.environ.get(DIE_WITH_PARENT.name):
        die_with_parent()


def service_main(service: str, description: str | None) -> "Config":
    """The configuration of a service from its command line."""
    parser = OneLineParser(prog=f"python -m services.{service}", description=description)
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
    if service != "teacher_scorer":
        _check_queue(config)
    if threads and "OMP_NUM_THREADS" not in os.environ:
        # OpenMP reads it once, at import, and all threads of vLLM must agree on it.
        os.environ["OMP_NUM_THREADS"] = str(threads)
        os.execv(sys.executable, [sys.executable, "-m", f"services.{service}", *sys.argv[1:]])
    return config


def _check_queue(config: "Config") -> None:
    """Ask the server of the queue before a model is loaded: a wrong address or password is known at once."""
    from calopd.transport.queue import open_queue

    open_queue(config.queue.url, "check", timeout_seconds=QUEUE_SECONDS).ping()


def become(module: str, words: Sequence[str]) -> None:
    """Replace this process by `python -m module words`; a Ctrl-C waits until that calls `accept_interrupts`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        os.execv(sys.executable, [sys.executable, "-m", module, *words])
    finally:  # the program could not be started
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def accept_interrupts() -> None:
    """Deliver a Ctrl-C from now on, and one that came since `become`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def guarded(main: Callable[[], None]) -> None:
    """Run an entry point; an error that a user can fix becomes one line and an exit code.

    The message also goes to the launcher, in the file that it names in the environment. Other errors are defects: their
    traceback is shown.
    """
    set_process_environment()
    try:
        main()
    except BrokenPipeError:  # `calopd … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(BROKEN_PIPE_EXIT)
    except Exception as error:
        failure = describe_failure(error)
        tell_launcher(failure.message if failure else f"{type(error).__name__}: {error}", final=failure is not None)
        if failure is None:
            raise
        print(f"error: {failure.message}", file=sys.stderr)
        sys.exit(failure.code)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as its user sees it."""

    message: str
    code: int


def describe_failure(error: Exception) -> Failure | None:
    """The line and the exit code of an error that a user can fix; None for a defect."""
    supervised = ERROR_FILE.name in os.environ
    if isinstance(error, QueueLoginRefused) or _is_of_redis(error, "AuthenticationError", "NoPermissionError"):
        hint = "correct user and password in CALOPD__QUEUE__URL, or allow the user the keys calopd:*"
        return Failure(f"{_line(error)}: {hint}", CONFIG_ERROR_EXIT)
    if isinstance(error, QueueUnavailable) or _is_of_redis(error, "ConnectionError", "TimeoutError"):
        return Failure(f"{_line(error)}: start the Redis server, or correct queue.url", TEMPORARY_EXIT)
    if _is_of_redis(error, "OutOfMemoryError"):
        hint = "raise its maxmemory, or delete abandoned runs with `calopd gc CONFIG --delete`"
        return Failure(f"Redis has no memory left: {hint}", TEMPORARY_EXIT)
    if isinstance(error, (EngineFailed, ResultsLost)):
        return Failure(str(error), RESTART_EXIT)
    if isinstance(error, CalopdError):
        return Failure(str(error), CONFIG_ERROR_EXIT)
    if isinstance(error, UnicodeDecodeError):
        return Failure(f"a file is not UTF-8 text ({error}): save it with the encoding UTF-8", CONFIG_ERROR_EXIT)
    if isinstance(error, OSError) and (remedy := _NOT_WRITABLE.get(error.errno or 0)):
        return Failure(f"{_file_error(error)}: {remedy}", CONFIG_ERROR_EXIT)
    if isinstance(error, OSError) and error.filename is not None and not supervised:
        return Failure(f"{_file_error(error)}: check the path", CONFIG_ERROR_EXIT)
    return None


_NOT_WRITABLE = {
    errno.ENOSPC: "free some space, or choose another folder",
    errno.EDQUOT: "free some space, or choose another folder",
    errno.EROFS: "choose a folder that can be written to",
    errno.EACCES: "choose another folder, or change its rights",
    errno.EPERM: "choose another folder, or change its rights",
}


def _is_of_redis(error: Exception, *names: str) -> bool:
    """Whether an error is one of these classes of redis-py, which is not imported for the question."""
    return any(kind.__module__.startswith("redis.") and kind.__name__ in names for kind in type(error).__mro__)


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _file_error(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)


def tell_progress() -> None:
    """Tell the launcher that this process has done some work: whatever kills it now is not a failure to start."""
    if file := os.environ.pop(PROGRESS_FILE.name, ""):
        with contextlib.suppress(OSError):
            Path(file).touch()


def tell_launcher(message: str, *, final: bool) -> None:
    """Write the error file. A crash does not replace the message of another rank, of which it may be a consequence."""
    if file := os.environ.get(ERROR_FILE.name):
        with contextlib.suppress(OSError), Path(file).open("w" if final else "x", encoding="utf-8") as out:
            out.write(message)
