"""Scores compared with what the model computes, and with what it would compute with a known mistake."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from calopd.doctor.outcome import Outcome, failed, passed

CORRECT = "correct"
LATE, EARLY, NEXT_ID = "one position late", "one position early", "ids shifted by one"
TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 1.25, 1.5, 2.0)
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest mean difference per token, in nats, between two computations of the same model."""
NEARER = 0.2
"""A mistake explains the scores if its difference is below this share of the correct scores' difference."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake, and what to do."""

    description: str
    advice: str


def temperature_name(value: float) -> str:
    return f"temperature {value:g}"


MISTAKES: dict[str, Mistake] = {
    LATE: Mistake(
        "they are read one position too late",
        "score token t from the logits of token t - 1, not of token t",
    ),
    EARLY: Mistake(
        "they are read one position too early",
        "score token t from the logits of token t - 1, not of token t - 2",
    ),
    NEXT_ID: Mistake(
        "they are the scores of the next higher ids",
        "the scorer uses the ids of another tokenizer: serve the teacher with its own files and send ids unchanged",
    ),
    **{
        temperature_name(value): Mistake(
            f"the logits are divided by a temperature of {value:g}",
            "score at temperature 1: remove the temperature from the scorer's settings",
        )
        for value in TEMPERATURES
    },
}
UNKNOWN = "compare the weight files, the quantization and the ids: the service does not compute what the model computes"


def compare_scores(given: np.ndarray, expected: Mapping[str, np.ndarray], dtype: str) -> Outcome:
    """Judge scores by the correct ones and by those of each mistake."""
    if not np.isfinite(given).all():
        bad = int((~np.isfinite(given)).sum())
        return failed(f"{bad} of {given.size} scores are NaN or infinite", "check the weight files and the dtype")
    if given.size > 1 and np.ptp(given) < 1e-6:
        return failed(f"all {given.size} scores are {given.flat[0]:.3f}", "check that the weights were loaded")
    apart = {name: float(np.abs(given - values).mean()) for name, values in expected.items()}
    tolerance = TOLERANCE[dtype]
    if apart[CORRECT] <= tolerance:
        return passed(f"mean difference {apart[CORRECT]:.2g} nats per token, {tolerance:g} allowed in {dtype}")
    nearest = min(apart, key=lambda name: apart[name])
    if nearest != CORRECT and apart[nearest] < NEARER * apart[CORRECT]:
        mistake = MISTAKES[nearest]
        return failed(
            f"the scores differ from the model's by {apart[CORRECT]:.2f} nats per token: {mistake.description} "
            f"(then they differ by {apart[nearest]:.2g})",
            mistake.advice,
        )
    return failed(f"the scores differ from the model's by {apart[CORRECT]:.2f} nats per token", UNKNOWN)
