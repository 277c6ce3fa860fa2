"""The entry point of the `calopd` command."""

import argparse
import sys

from calopd.cli.registry import find_command
from calopd.local.entry_point import guarded


def main() -> None:
    guarded(_run)


def _run() -> None:
    command, words = find_command(sys.argv[1:])
    arguments = command.parser().parse_args(words, argparse.Namespace(words=words))
    command.module.run(arguments)


if __name__ == "__main__":
    main()
