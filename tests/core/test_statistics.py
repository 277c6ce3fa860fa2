"""Statistics over seeds and problems, against independent computations."""

import numpy as np
import pytest

from calopd.core.statistics import difference, holm, seeded_difference, spread


def test_spread_is_the_sample_standard_deviation():
    found = spread([0.5, 0.6, 0.7])
    assert (found.mean, found.deviation) == pytest.approx((0.6, 0.1))
    assert found.count == 3
    assert spread([0.5]).deviation is None


def test_holm_is_the_worked_example():
    """Holm's step-down: sorted p times (m - rank), never decreasing, at most 1."""
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(found) == ["a", "b", "c", "d"]
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_one_seed_is_the_paired_bootstrap_over_problems():
    rng = np.random.default_rng(0)
    ours, theirs = rng.random(200), rng.random(200)
    seeded = seeded_difference({"b": ours[None]}, {"b": theirs[None]}, draws=4_000)
    plain = difference({"b": ours.tolist()}, {"b": theirs.tolist()}, draws=4_000)
    assert seeded.estimate.value == pytest.approx(plain.estimate.value)
    assert seeded.estimate.low == pytest.approx(plain.estimate.low, abs=0.005)
    assert seeded.estimate.high == pytest.approx(plain.estimate.high, abs=0.005)


def test_seeds_that_disagree_widen_the_interval_and_shared_noise_does_not():
    rng = np.random.default_rng(1)
    base = rng.random((1, 300))
    same = np.repeat(base + 0.05, 4, axis=0)
    spread_out = base + np.array([[-0.1], [0.2], [0.0], [0.1]])
    exact = seeded_difference({"b": same}, {"b": base}).estimate
    assert (exact.low, exact.value, exact.high) == pytest.approx((0.05, 0.05, 0.05))
    wide = seeded_difference({"b": spread_out}, {"b": base}).estimate
    assert wide.value == pytest.approx(0.05)
    # Resampled over four seeds: the standard error is sd(ddof=0) / sqrt(4), independent of the problems.
    error = np.std([-0.1, 0.2, 0.0, 0.1]) / 2
    assert wide.high - wide.low == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_seeds_are_paired():
    """Both models have the same seeds: what a seed adds to both cancels."""
    rng = np.random.default_rng(2)
    theirs = rng.random((3, 100)) + np.array([[0.0], [5.0], [9.0]])
    found = seeded_difference({"b": theirs + 0.1}, {"b": theirs}).estimate
    assert (found.low, found.high) == pytest.approx((0.1, 0.1))


def test_benchmarks_count_equally_whatever_their_size():
    found = seeded_difference(
        {"a": np.ones((2, 4)), "b": np.zeros((2, 100))}, {"a": np.zeros((2, 4)), "b": np.zeros((2, 100))}
    )
    assert found.estimate.value == pytest.approx(0.5)
