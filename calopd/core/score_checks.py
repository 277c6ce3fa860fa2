"""Checks that keep bad teacher scores away from the optimizer."""

import math

import numpy as np

from calopd.core.errors import UnhealthyTeacher

VARIANCE_TOKENS = 64
"""Responses of at least this many tokens with all log-probabilities equal are refused."""


def check_scores(logprobs: np.ndarray, tokens: int, vocabulary_size: int) -> None:
    """Refuse NaN or positive values, a wrong length, a uniform teacher and a constant one, with the reason."""
    if logprobs.shape != (tokens,):
        raise UnhealthyTeacher(f"{logprobs.shape} scores for {tokens} response tokens: wrong length")
    if not np.isfinite(logprobs).all() or (logprobs > 1e-4).any():
        bad = int((~np.isfinite(logprobs) | (logprobs > 1e-4)).sum())
        raise UnhealthyTeacher(f"{bad} of {tokens} log-probabilities are NaN, infinite or above 0")
    if tokens > 1 and np.abs(logprobs + math.log(vocabulary_size)).max() < 1e-4:
        raise UnhealthyTeacher(
            f"all {tokens} tokens stand at -ln V: the teacher is uniform, its weights are not loaded"
        )
    if tokens >= VARIANCE_TOKENS and logprobs.std() < 1e-7:
        raise UnhealthyTeacher(f"all {tokens} tokens have the log-probability {logprobs[0]:.4f}: zero variance")
