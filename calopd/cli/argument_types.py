"""Types of arguments that several commands share; each refuses a value in plain words."""

import argparse
import math
from collections.abc import Callable

from calopd.core.options import SEEDS


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number") from None


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number")
    return value


def at_least(least: int) -> Callable[[str], int]:
    """Whole numbers that are not too small."""

    def parse(text: str) -> int:
        if (value := whole(text)) < least:
            raise argparse.ArgumentTypeError(f"{value}: expected {least} or more")
        return value

    return parse


positive = at_least(1)


def seed(text: str) -> int:
    """A seed of random numbers."""
    if not 0 <= (value := whole(text)) < SEEDS:
        raise argparse.ArgumentTypeError(f"{value}: expected 0 or more, below {SEEDS}")
    return value


def above_zero(text: str) -> float:
    """A number above 0."""
    if (value := number(text)) <= 0:
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0")
    return value


def thresholds(text: str) -> tuple[float, ...]:
    """Positive numbers with commas between."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers like 0.01,0.05") from None
    if not all(0 < value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: thresholds must be above 0")
    return values
