"""Predict how long a step takes and which split of the GPUs is best, without using one."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from calopd.cli.argument_types import above_zero, positive

if TYPE_CHECKING:
    from calopd.planning.plan_tables import Plan

HELP = "predict the time of a step on given GPUs, and the best split of them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", type=Path, nargs="+", help="the run's TOML; several are compared")
    add("--gpu", help="a GPU of the table, for example h100 (default: resources.gpu, else h100)")
    add("--count", type=positive, help="number of GPUs (default: resources.host_gpus, else 8)")
    add("--price", type=above_zero, help="price of a GPU hour, to show what the run costs")
    add("--most", type=positive, default=6, help="splits to show (default: 6)")
    add("--measure", action="store_true", help="measure the rates of this machine instead of assuming those of --gpu")
    add("--lengths", type=Path, metavar="RUN", help="take the lengths of the responses from a run, not from the paper")
    add("--overlay", type=Path, metavar="DIR", help="write a Kubernetes overlay for the best split, with its TOML")
    add("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one setting")


def run(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from calopd.config import load_config
    from calopd.core.errors import ConfigError
    from calopd.planning.gpus import gpu_named
    from calopd.planning.lengths import PAPER_LENGTHS, lengths_of_run
    from calopd.planning.overlay import refuse_existing
    from calopd.planning.plan_tables import Plan, print_assumptions, print_comparison, print_plan
    from calopd.planning.rates import ASSUMED
    from calopd.planning.splits import plan_splits
    from calopd.rundir.layout import RunDir

    console, plans = Console(), []
    if arguments.measure and (arguments.gpu or arguments.overlay):
        raise ConfigError("--measure plans for GPUs like that of this machine: leave out --gpu and --overlay")
    if arguments.overlay and len(arguments.config) > 1:
        raise ConfigError("--overlay is for one configuration: give only one")
    if arguments.overlay:
        refuse_existing(arguments.overlay)
    responses = lengths_of_run(RunDir(arguments.lengths)) if arguments.lengths else PAPER_LENGTHS
    for file in arguments.config:
        config = load_config(file, arguments.set)
        count = arguments.count or config.resources.host_gpus or 8
        if count < 3:
            raise ConfigError(f"--count {count}: three roles need 3 GPUs or more; for one, see configs/single-gpu.toml")
        gpu, efficiency = gpu_named(arguments.gpu or config.resources.gpu or "h100"), ASSUMED
        if arguments.measure:
            from calopd.planning.measured_rates import measure  # imports torch

            gpu, efficiency, notes = measure(config)
            console.print(*notes, sep="\n", highlight=False, markup=False)
        splits = plan_splits(config, gpu, count, efficiency, responses)
        plans.append(Plan(config=config, gpu=gpu, splits=splits, efficiency=efficiency, responses=responses))
        print_plan(console, plans[-1], arguments.most, arguments.price)
    if len(plans) > 1:
        print_comparison(console, plans, arguments.price)
    print_assumptions(console, plans[-1])
    if arguments.overlay:
        _write_overlay(plans[0], arguments.config[0], arguments.overlay)


def _write_overlay(plan: "Plan", file: Path, folder: Path) -> None:
    """Write the Kubernetes overlay of the best split."""
    from calopd.core.errors import ConfigError
    from calopd.planning.overlay import write_overlay
    from calopd.planning.splits import with_split

    best, gpus = plan.best, f"{plan.count} {plan.gpu.name}"
    if not best.fits_all:
        raise ConfigError(f"no split of {gpus} fits: no overlay is written to {folder}")
    placed = with_split(plan.config, plan.gpu.name, best.teacher, best.rollout, best.learner)
    write_overlay(folder, placed, f"{file} on a node with {gpus}: the fastest split.")
    print(f"{folder}: edit kustomization.yaml, then deploy/k8s/cluster.sh up {folder}")
