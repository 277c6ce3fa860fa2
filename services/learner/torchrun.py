"""python -m services.learner.torchrun [torchrun's options] -m services.learner --config CONFIG

torchrun that ends with the exit code of the rank that failed first: whoever started it can tell a settings error, which
starting again cannot help, from a crash.
"""

import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun


def main() -> None:
    try:
        torchrun()
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        print(f"rank {failure.local_rank} ended with {failure.exitcode}", file=sys.stderr)
        sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)


if __name__ == "__main__":
    main()
