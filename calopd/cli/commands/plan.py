"""Predict how long a step takes and which split of the GPUs is best, without using one."""

import argparse
from pathlib import Path

from calopd.cli.argument_types import above_zero, positive

HELP = "predict the time of a step on given GPUs, and the best split of them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", type=Path, help="the run's TOML")
    add("--gpu", help="a GPU of the table, for example h100 (default: resources.gpu, else h100)")
    add("--count", type=positive, help="number of GPUs (default: resources.host_gpus, else 8)")
    add("--price", type=above_zero, help="price of a GPU hour, to show what the run costs")
    add("--most", type=positive, default=6, help="splits to show (default: 6)")
    add("--overlay", type=Path, metavar="DIR", help="write a Kubernetes overlay for the best split, with its TOML")
    add("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one setting")


def run(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from calopd.config import load_config
    from calopd.config.nearest import nearest
    from calopd.core.errors import ConfigError
    from calopd.planning.gpus import GPUS
    from calopd.planning.overlay import write_overlay
    from calopd.planning.plan_tables import print_plan
    from calopd.planning.splits import plan_splits, with_split

    config = load_config(arguments.config, arguments.set)
    name = (arguments.gpu or config.resources.gpu or "h100").lower()
    count = arguments.count or config.resources.host_gpus or 8
    if name not in GPUS:
        raise ConfigError(f"--gpu {name}: not in the table{nearest(name, GPUS)}")
    if count < 3:
        raise ConfigError(f"--count {count}: three roles need 3 GPUs or more; for one, see configs/single-gpu.toml")
    splits = plan_splits(config, GPUS[name], count)
    print_plan(Console(), config, GPUS[name], splits[: arguments.most], arguments.price)
    if arguments.overlay:
        best = splits[0]
        if not best.fits_all:
            raise ConfigError(f"no split of {count} {name} fits: no overlay is written to {arguments.overlay}")
        placed = with_split(config, name, best.teacher, best.rollout, best.learner)
        write_overlay(
            arguments.overlay, placed, f"{arguments.config} on a node with {count} {name}: the fastest split."
        )
        print(f"{arguments.overlay}: edit kustomization.yaml, then deploy/k8s/cluster.sh up {arguments.overlay}")
