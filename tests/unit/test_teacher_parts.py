import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from calopd.errors import UnhealthyTeacher
from calopd.health import check_scores
from services.teacher_scorer.batching import MAX_PADDING, cut_batch


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 2_000))
def test_a_batch_has_the_oldest_fits_the_budget_and_is_hardly_padded(lengths, budget):
    chosen = cut_batch(lengths, budget)
    assert 0 in chosen
    assert len(set(chosen)) == len(chosen)
    padded = max(lengths[i] for i in chosen) * len(chosen)
    assert len(chosen) == 1 or padded <= budget
    assert padded - sum(lengths[i] for i in chosen) <= MAX_PADDING * padded + 1e-9


def test_equal_lengths_fill_the_budget():
    assert len(cut_batch([10] * 30, 200)) == 20


HEALTHY = np.linspace(-3, -0.1, 80, dtype=np.float32)


@pytest.mark.parametrize(
    ("scores", "tokens", "reason"),
    [
        (np.where(np.arange(80) == 3, np.nan, HEALTHY), 80, "1 of 80"),
        (HEALTHY + 4, 80, "above 0"),
        (HEALTHY, 81, "wrong length"),
        (np.full(80, -math.log(1000), np.float32), 80, "-ln V"),
        (np.full(80, -1.5, np.float32), 80, "zero variance"),
    ],
)
def test_a_bad_teacher_is_refused_with_the_reason(scores, tokens, reason):
    check_scores(HEALTHY, 80, 1000)
    with pytest.raises(UnhealthyTeacher, match=reason):
        check_scores(scores, tokens, 1000)
