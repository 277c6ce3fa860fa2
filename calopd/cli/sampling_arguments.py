"""Options of a command for the sampling parameters."""

import argparse
from dataclasses import asdict

from calopd.core.options import Sampling


def add_sampling_arguments(parser: argparse.ArgumentParser, defaults: Sampling) -> None:
    """Add one option per parameter of `Sampling`: `--top-p` for `top_p`."""
    for name, value in asdict(defaults).items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(value), default=value, help="(default: %(default)s)"
        )
