"""Majority score, averages and paired differences of accuracies, with bootstrap confidence intervals.

Samples of one problem are correlated, so the bootstrap resamples problems, not samples. The mean over benchmarks is
unweighted: each benchmark is resampled separately, and the means of the resamples are averaged.
"""

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Key = TypeVar("Key", bound=Hashable)

DRAWS = 10_000
_CHUNK = 2**22
"""Numbers drawn at a time; bounds the memory of a bootstrap for any number of problems."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    estimate: Estimate
    p_value: float
    """Two-sided: twice the share of resamples with a difference of the opposite sign; at least 1 / draws."""

    @property
    def significant(self) -> bool:
        return not self.estimate.low <= 0.0 <= self.estimate.high


def majority_score(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """1 if the most frequent answer is correct, else 0; for a tie, the share of the tied answers that is correct.

    Answers are keys (`calopd.data.answers.answer_key`). None is a response without an answer and does not vote.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    right = {answer for answer, good in zip(answers, correct, strict=True) if good}
    tied = [answer for answer, count in votes.items() if count == most]
    return sum(answer in right for answer in tied) / len(tied)


def bootstrap(values_P: Sequence[float], name: str, draws: int = DRAWS) -> np.ndarray:
    """Means of `draws` resamples of the problems, seeded by the benchmark's name, so that tables are reproducible."""
    values = np.asarray(values_P, dtype=np.float64)
    rng, rows = _rng(name), max(1, _CHUNK // len(values))
    parts = [
        values[rng.integers(0, len(values), (min(rows, draws - start), len(values)))].mean(1)
        for start in range(0, draws, rows)
    ]
    return np.concatenate(parts)


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))


def _p_value(drawn: np.ndarray) -> float:
    tail = min((drawn <= 0).mean(), (drawn >= 0).mean())
    return float(min(1.0, max(2 * tail, 1 / len(drawn))))


def _interval(means: np.ndarray, value: float) -> Estimate:
    low, high = np.percentile(means, (2.5, 97.5))
    return Estimate(value, float(low), float(high))


def average(values_by_benchmark: dict[str, Sequence[float]], draws: int = DRAWS) -> Estimate:
    """Unweighted mean over benchmarks of the mean over their problems."""
    value = float(np.mean([np.mean(values) for values in values_by_benchmark.values()]))
    drawn = [bootstrap(values, name, draws) for name, values in values_by_benchmark.items()]
    return _interval(np.mean(drawn, axis=0), value)


def difference(ours: dict[str, Sequence[float]], theirs: dict[str, Sequence[float]], draws: int = DRAWS) -> Difference:
    """Paired difference ours - theirs; both need the same benchmarks with the same problems in the same order."""
    gains = {name: np.subtract(ours[name], theirs[name]) for name in ours}
    value = float(np.mean([gain.mean() for gain in gains.values()]))
    drawn = np.mean([bootstrap(gain.tolist(), name, draws) for name, gain in gains.items()], axis=0)
    return Difference(_interval(drawn, value), _p_value(drawn))


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation over seeds; None for a single seed."""

    mean: float
    deviation: float | None
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation (n - 1)."""
    numbers = np.asarray(values, dtype=np.float64)
    deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
    return Spread(float(numbers.mean()), deviation, len(numbers))


def seeded_difference(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], draws: int = DRAWS
) -> Difference:
    """Paired difference of two models that were trained with several seeds: benchmark -> [seeds, problems] scores.

    Each draw resamples the problems of every benchmark and the seeds, one choice of seeds for all benchmarks. Row s of
    both has the same seed; one row alone, of a model that was not trained, is compared with every seed. With one seed
    the interval is over problems only. Two or three seeds are few: the resampled spread over them is too small.
    """
    gains = {name: np.asarray(ours[name]) - np.asarray(theirs[name]) for name in ours}
    seeds = {gain.shape[0] for gain in gains.values()}
    assert len(seeds) == 1, "every benchmark has the same seeds"
    value = float(np.mean([gain.mean() for gain in gains.values()]))
    (count,) = seeds
    chosen = _rng("seeds").integers(0, count, (draws, count))
    drawn = np.mean(
        [np.take_along_axis(_resampled(gain, name, draws), chosen, axis=1).mean(1) for name, gain in gains.items()],
        axis=0,
    )
    return Difference(_interval(drawn, value), _p_value(drawn))


def _resampled(values_SP: np.ndarray, name: str, draws: int) -> np.ndarray:
    """[draws, seeds]: means over resampled problems, the same problems for all seeds."""
    problems = values_SP.shape[1]
    rng, rows = _rng(name), max(1, _CHUNK // problems)
    parts = [
        rng.multinomial(problems, np.full(problems, 1 / problems), min(rows, draws - start)) @ values_SP.T / problems
        for start in range(0, draws, rows)
    ]
    return np.concatenate(parts)


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's correction: p-values that keep the chance of any false finding among all comparisons below the level."""
    ordered = sorted(p_values, key=lambda key: p_values[key])
    adjusted: dict[Key, float] = {}
    largest = 0.0
    for rank, key in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - rank) * p_values[key]))
        adjusted[key] = largest
    return {key: adjusted[key] for key in p_values}
