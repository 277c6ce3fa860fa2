"""Answer checking: the last balanced \\boxed{...} is compared as text, number or parts, or by math-verify."""

from calopd.data.answers.boxed import answered_after_think, last_boxed
from calopd.data.answers.equality import answer_key, equal

__all__ = ["answer_key", "answered_after_think", "equal", "is_correct", "last_boxed"]


def is_correct(response: str, gold: str) -> bool:
    """Whether the last boxed answer of the response equals the gold answer; False if nothing is boxed."""
    boxed = last_boxed(response)
    return boxed is not None and equal(gold, boxed)
