"""Write the page of a study: figures, token forms and trajectories."""

import argparse
from pathlib import Path

from calopd.cli.argument_types import at_least, positive

HELP = "write the page of a study"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("directory", type=Path, help="the study's directory")
    add("-o", "--out", type=Path, metavar="FILE", help="default: DIRECTORY/tsd.html")
    add("--rollout", type=at_least(0), action="append", default=[], help="show this rollout; may be repeated")
    add("--trajectories", type=positive, default=24, help="rollouts on the page (default: %(default)s)")


def run(arguments: argparse.Namespace) -> None:
    print(write(arguments))


def write(arguments: argparse.Namespace) -> Path:
    """Write the page and return its path."""
    from calopd.study.study_page import write_page

    return write_page(arguments.directory, arguments.out, chosen=arguments.rollout, count=arguments.trajectories)
