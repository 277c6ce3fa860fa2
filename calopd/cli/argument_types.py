"""Types of arguments that several commands share."""

import argparse


def thresholds(text: str) -> tuple[float, ...]:
    """Positive numbers with commas between."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers like 0.01,0.05") from None
    if not all(0 < value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: thresholds must be above 0")
    return values
