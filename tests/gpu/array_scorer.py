"""A worker extension with a planted defect: a method that returns an array."""

import numpy as np

from services.teacher_scorer.engines.response_scorer import ResponseScorer


class ArrayScorer(ResponseScorer):
    def three_numbers(self) -> np.ndarray:
        return np.arange(3, dtype=np.float32)
