"""Write the report of a run again, from its records."""

import argparse
from pathlib import Path

HELP = "write the report of a run again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, help="the run's directory")


def run(arguments: argparse.Namespace) -> None:
    from calopd.pages.report import write_report
    from calopd.rundir.layout import RunDir

    print(write_report(RunDir(arguments.directory)))
