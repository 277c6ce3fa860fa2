"""Run an experiment: train and evaluate all its runs, write tables and figures as they end.

The same command resumes after anything. On several hosts that share the directory, each takes the next free run.
"""

import argparse
from pathlib import Path

HELP = "run an experiment; the same command resumes, also on several hosts that share its directory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the experiment's TOML, for example configs/experiments/demo.toml")
    parser.add_argument("--report", action="store_true", help="only write the page again, from what is finished")


def run(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from calopd.experiments.experiment_file import load_experiment
    from calopd.experiments.experiment_loop import ExperimentLoop
    from calopd.experiments.experiment_page import write_results
    from calopd.experiments.planned_runs import plan_experiment
    from calopd.local.services import resumable

    plan = plan_experiment(arguments.file, load_experiment(arguments.file))
    if arguments.report:
        print(write_results(plan))
        return
    with resumable(f"resume with: calopd experiment run {arguments.file}"):
        ExperimentLoop(plan, Console(soft_wrap=True)).run()
