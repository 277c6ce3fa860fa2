"""Compare two studies, or two thresholds of one study, on one page."""

import argparse
from pathlib import Path

from calopd.cli.argument_types import thresholds

HELP = "compare two studies, or two thresholds of one study, on one page"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("first", type=Path)
    add("second", type=Path)
    add("--tau", type=thresholds, default=None, help="one threshold, or one for each study: 0.01,0.05")
    add("-o", "--out", type=Path, metavar="FILE", help="default: FIRST/compare.html")


def run(arguments: argparse.Namespace) -> None:
    from calopd.core.errors import ConfigError
    from calopd.study.comparison_page import write_comparison

    taus = arguments.tau or ()
    if len(taus) > 2:
        raise ConfigError(f"--tau {taus}: give one threshold for both studies, or one for each")
    print(write_comparison(arguments.first, arguments.second, taus, arguments.out))
