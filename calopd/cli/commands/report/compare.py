"""Compare runs: their curves in one chart per metric, with bands over seeds, and their times."""

import argparse
from pathlib import Path

HELP = "compare runs on one page; runs that differ only in the seed form a band"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="directories of runs")
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("runs/compare"), metavar="DIR",
        help="directory for compare.html and the figures as CSV, LaTeX and SVG (default: %(default)s)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    from calopd.pages.comparison.compared_page import write_comparison_of_runs
    from calopd.pages.comparison.run_groups import group_runs
    from calopd.rundir.layout import RunDir

    print(write_comparison_of_runs(group_runs(map(RunDir, arguments.runs)), arguments.out))
