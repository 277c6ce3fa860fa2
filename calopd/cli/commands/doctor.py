"""Check a run before it starts: machine, models, prompts, data, Redis, teachers.

Each check is passed, failed or not checked, with what to do. Without options nothing is started and no model is loaded;
services that are running are contacted. The exit code is 0 if no check failed, else 78.
"""

import argparse
import sys
from pathlib import Path

from calopd.cli.argument_types import positive

HELP = "check machine, models, data and services before a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="the run's TOML")
    parser.add_argument("--quick", action="store_true", help="only the checks that `calopd run` makes at its start")
    parser.add_argument("--full", action="store_true", help="also load the models and compare what they compute")
    parser.add_argument("--problems", type=positive, default=16, help="problems that --full tries both models on")
    parser.add_argument(
        "--report",
        type=Path,
        nargs="?",
        const=Path("doctor-report.md"),
        metavar="FILE",
        help="also write a file to paste into an issue: versions, results, facts measured on the GPU; no secrets "
        "(default: doctor-report.md; JSON if the name ends with .json)",
    )
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one setting")


def run(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from calopd.config import load_config
    from calopd.core.errors import ConfigError
    from calopd.doctor.case import Case
    from calopd.doctor.checks import Level, examine
    from calopd.doctor.outcome import Verdict
    from calopd.doctor.report_file import write_report
    from calopd.doctor.results_table import show
    from calopd.local.entry_point import CONFIG_ERROR_EXIT

    if arguments.quick and arguments.full:
        raise ConfigError("give --quick or --full, not both")
    level = Level.QUICK if arguments.quick else Level.FULL if arguments.full else Level.SERVICES
    case = Case(load_config(arguments.config, arguments.set), problems=arguments.problems)
    results = list(examine(case, level))
    show(Console(), results)
    if arguments.report is not None:
        write_report(case, results, arguments.report)
        print(f"report: {arguments.report}")
    if any(result.outcome.verdict is Verdict.FAILED for result in results):
        sys.exit(CONFIG_ERROR_EXIT)
