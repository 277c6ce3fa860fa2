"""Paired comparison of existing evaluations."""

import argparse
from pathlib import Path

HELP = "compare existing results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("results", type=Path, nargs="+", help="results.json, or its directory; the first is the student")
    add("--student", metavar="LABEL", help="the model that the others are compared with (default: the first)")
    add("--teacher", metavar="LABEL", help="not a method (default: the label `teacher`)")
    add("--format", choices=("text", "markdown", "csv", "latex"), default="text")
    add("-o", "--out", type=Path, help="file for the export; with --format text, for a page")


def run(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from calopd.evaluation import accuracy_tables
    from calopd.evaluation.evaluation_page import write_page
    from calopd.evaluation.paired_comparison import compare
    from calopd.evaluation.results import read_results
    from calopd.rundir.files import write_text

    results = [read_results(path) for path in arguments.results]
    comparison = compare(results, student=arguments.student, teacher=arguments.teacher)
    if arguments.format == "text":
        console = Console(soft_wrap=True)
        console.print(accuracy_tables.comparison_table(comparison))
        console.print(accuracy_tables.difference_table(comparison))
        if arguments.out is not None:
            print(write_page(arguments.out, results, comparison))
        return
    text = accuracy_tables.EXPORTS[arguments.format](comparison)
    if arguments.out is None:
        print(text, end="")
    else:
        print(write_text(arguments.out, text))
