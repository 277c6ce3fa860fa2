"""python -m services.learner.torchrun [options of torchrun] -m services.learner --config CONFIG

torchrun that passes on the exit code of the rank that failed, so that its parent can tell an error that a restart
cannot fix (78) from a crash.
"""

import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from calopd.local.entry_point import CONFIG_ERROR_EXIT


def main() -> None:
    try:
        torchrun()
    except ChildFailedError as error:
        sys.exit(_exit_code(error))


def _exit_code(error: ChildFailedError) -> int:
    """78 if any rank ended with it, since the others then fail as a consequence; else the code of the first failure."""
    failures = error.failures.values()
    first = error.get_first_failure()[1]
    failure = next((failure for failure in failures if failure.exitcode == CONFIG_ERROR_EXIT), first)
    print(f"rank {failure.local_rank} ended with exit code {failure.exitcode}", file=sys.stderr)
    return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode


if __name__ == "__main__":
    main()
