"""Write the report of a run again, from its records."""

import argparse
import sys
from pathlib import Path

HELP = "write the report of a run again, and its trace if it was traced"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, help="the run's directory")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE",
        help="write the page there and nothing into the run; - is the standard output (default: DIRECTORY/report.html)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    from calopd.core.errors import ConfigError
    from calopd.rundir.layout import RunDir
    from calopd.tracking.trace import write_trace

    run_dir = RunDir(arguments.directory)
    if not run_dir.is_run:
        raise ConfigError(f"no run at {run_dir}: expected a directory like runs/demo, which `calopd run` wrote")
    if arguments.out is None and (trace := write_trace(run_dir)) is not None:  # a run that crashed early has no report
        print(trace)
    from calopd.pages.report import render_report, write_report  # imports torch

    if arguments.out == Path("-"):
        sys.stdout.write(render_report(run_dir))
    else:
        print(write_report(run_dir, arguments.out))
