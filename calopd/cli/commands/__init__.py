"""On-policy distillation that learns only from what the teacher's own prompt sensitivity does not explain."""

import argparse

import calopd


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action="version", version=f"calopd {calopd.__version__}")
