"""Options of a command for the sampling parameters."""

import argparse
from dataclasses import asdict

from calopd.cli.argument_types import number, whole
from calopd.core.options import Sampling


def add_sampling_arguments(parser: argparse.ArgumentParser, defaults: Sampling) -> None:
    """Add one option per parameter of `Sampling`: `--top-p` for `top_p`."""
    for name, value in asdict(defaults).items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=whole if isinstance(value, int) else number,
            default=value,
            help="(default: %(default)s)",
        )
