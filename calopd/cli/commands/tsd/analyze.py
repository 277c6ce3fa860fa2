"""Compute all numbers of a study: analysis.json and tables/*.csv."""

import argparse
from pathlib import Path

from calopd.cli.argument_types import at_least, positive, thresholds

HELP = "compute all numbers of a study: analysis.json and tables/*.csv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("directory", type=Path, help="the study's directory")
    add("--tau", type=thresholds, default=None, help="thresholds (default: 0.01,0.05,0.1)")
    add(
        "--min-count",
        type=at_least(0),
        help="list token forms that occur more often (default: 20000 per 60 million tokens)",
    )
    add("--blank-forms", action="store_true", help="also rank token forms of white space only")
    add("--probes", action="append", default=[], help="also measure the union of these groups, for example inst,eval")
    add("--threads", type=positive, help="default: one per core")


def run(arguments: argparse.Namespace) -> None:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from calopd.core.tsd.deviation_sums import TAUS
    from calopd.study.analyze import analyze
    from calopd.study.layout import StudyDir
    from calopd.study.shards import Study
    from calopd.study.terminal_tables import print_analysis

    _ = Study(arguments.directory).facts  # an error if there is no study
    with Progress(TextColumn("reading"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=None)
        analysis = analyze(
            arguments.directory,
            taus=arguments.tau or TAUS,
            min_count=arguments.min_count,
            unions=[entry.split(",") for entry in arguments.probes],
            threads=arguments.threads,
            blank_forms=arguments.blank_forms,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    print_analysis(analysis)
    files = StudyDir(arguments.directory)
    print(f"{files.analysis}, tables in {files.tables}")
