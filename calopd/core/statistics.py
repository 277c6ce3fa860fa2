"""Avg@n, pass@n, majority@n, and what they may be off by: the bootstrap over problems, paired for a difference.

Samples of one problem hang together, so problems are drawn and not samples. The mean over benchmarks is unweighted:
each benchmark is drawn by itself, and the means of the draws are averaged.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 10_000
_CHUNK = 2**22
"""Numbers drawn at once: the memory of a bootstrap, whatever the number of problems."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    estimate: Estimate
    p_value: float
    """Two-sided: how often a difference of the other sign is drawn, doubled; at least 1 / draws."""

    @property
    def significant(self) -> bool:
        return not self.estimate.low <= 0.0 <= self.estimate.high


def majority_score(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """Whether the answer most often given is right; between answers given equally often, the share that is right.

    Answers are keys (`calopd.data.answers.answer_key`); None, a response without an answer, has no vote.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    right = {answer for answer, good in zip(answers, correct, strict=True) if good}
    tied = [answer for answer, count in votes.items() if count == most]
    return sum(answer in right for answer in tied) / len(tied)


def bootstrap(values_P: Sequence[float], name: str, draws: int = DRAWS) -> np.ndarray:
    """Means of `draws` resamples of the problems, seeded by the benchmark's name: the same table comes twice."""
    values = np.asarray(values_P, dtype=np.float64)
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))
    rows = max(1, _CHUNK // len(values))
    parts = [
        values[rng.integers(0, len(values), (min(rows, draws - start), len(values)))].mean(1)
        for start in range(0, draws, rows)
    ]
    return np.concatenate(parts)


def _interval(means: np.ndarray, value: float) -> Estimate:
    low, high = np.percentile(means, (2.5, 97.5))
    return Estimate(value, float(low), float(high))


def average(values_by_benchmark: dict[str, Sequence[float]], draws: int = DRAWS) -> Estimate:
    """The unweighted mean over benchmarks of the mean over their problems."""
    value = float(np.mean([np.mean(values) for values in values_by_benchmark.values()]))
    drawn = [bootstrap(values, name, draws) for name, values in values_by_benchmark.items()]
    return _interval(np.mean(drawn, axis=0), value)


def difference(ours: dict[str, Sequence[float]], theirs: dict[str, Sequence[float]], draws: int = DRAWS) -> Difference:
    """ours - theirs, problem by problem: both have the same benchmarks, and problem i is the same in both."""
    gains = {name: np.subtract(ours[name], theirs[name]) for name in ours}
    value = float(np.mean([gain.mean() for gain in gains.values()]))
    drawn = np.mean([bootstrap(gain.tolist(), name, draws) for name, gain in gains.items()], axis=0)
    tail = min((drawn <= 0).mean(), (drawn >= 0).mean())
    return Difference(_interval(drawn, value), float(min(1.0, max(2 * tail, 1 / draws))))
