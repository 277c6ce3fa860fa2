"""Show the runs of an experiment, their order and their cost, without running anything."""

import argparse
from pathlib import Path

HELP = "show the runs of an experiment, their order and their cost, without running anything"

WIDTH = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the experiment's TOML, for example configs/paper/main-table.toml")
    parser.add_argument("--price", type=float, help="price of a GPU hour, to show what the experiment costs")


def run(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from calopd.experiments.experiment_file import load_experiment
    from calopd.experiments.plan_report import print_experiment
    from calopd.experiments.planned_runs import plan_experiment

    plan = plan_experiment(arguments.file, load_experiment(arguments.file))
    console = Console(soft_wrap=True)
    # A narrow column would cut the names of runs.
    print_experiment(Console(soft_wrap=True, width=max(console.width, WIDTH)), plan, arguments.price)
