"""The numerical noise of a study, against direct counts."""

import numpy as np
import pytest

from calopd.core.tsd.noise import FLOOR_SHARE, noise_counts, noise_sentence, noise_summary

TAUS = (0.01, 0.05, 0.1)


def test_shares_and_floor_are_those_of_a_direct_count():
    rng = np.random.default_rng(0)
    parts = [(first := rng.normal(-3, 2, 5_000), first + rng.normal(0, 0.01, 5_000)) for _ in range(4)]
    rows = [noise_counts(first, second) for first, second in parts]
    apart = np.concatenate([np.abs(second - first) for first, second in parts])
    found = noise_summary(rows, TAUS)
    assert found["tokens"] == 20_000
    assert found["largest"] == pytest.approx(apart.max())
    assert (apart > found["floor"]).mean() <= FLOOR_SHARE < (apart > found["floor"] / 1.13).mean()
    for tau in TAUS:
        share = (apart > tau).mean()
        assert share <= found["beyond"][f"{tau:g}"] <= (apart > tau / 1.13).mean(), "a bin is 12 % wide"
    assert f"below {found['floor']:.2g} nats" in noise_sentence(found)


def test_equal_scores_have_no_noise():
    scores = np.linspace(-5, 0, 100, dtype=np.float32)
    found = noise_summary([noise_counts(scores, scores)], TAUS)
    assert (found["floor"], found["largest"], found["beyond"]["0.01"]) == (0.0, 0.0, 0.0)


def test_noise_beyond_all_bins_is_still_counted():
    found = noise_summary([noise_counts(np.zeros(10), np.full(10, -50.0))], TAUS)
    assert (found["floor"], found["beyond"]["0.1"]) == (50.0, 1.0)


def test_what_was_not_measured_is_said():
    assert noise_summary([], TAUS) is None
    assert "not measured" in noise_sentence(None)
