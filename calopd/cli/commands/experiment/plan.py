"""Show the runs of an experiment, their order and their cost, without running anything."""

import argparse
from pathlib import Path

from calopd.cli.argument_types import above_zero

HELP = "show the runs of an experiment, their order and their cost, without running anything"

WIDTH = 130
"""Columns of a plan that is written to a file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the experiment's TOML, for example configs/paper/main-table.toml")
    parser.add_argument("--price", type=above_zero, help="price of a GPU hour, to show what the experiment costs")


def run(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from calopd.experiments.experiment_file import load_experiment
    from calopd.experiments.plan_report import print_experiment
    from calopd.experiments.planned_runs import plan_experiment

    plan = plan_experiment(arguments.file, load_experiment(arguments.file))
    console = Console()
    print_experiment(console if console.is_terminal else Console(width=WIDTH), plan, arguments.price)
