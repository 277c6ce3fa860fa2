"""A program of two ranks for torchrun: rank 1 finds an error of the user, rank 0 fails as a consequence."""

import os
import sys

from calopd.core.errors import ConfigError
from calopd.local.entry_point import guarded


def main() -> None:
    if os.environ["RANK"] == "1":
        raise ConfigError("found by rank 1")
    sys.exit(1)


if __name__ == "__main__":
    guarded(main)
