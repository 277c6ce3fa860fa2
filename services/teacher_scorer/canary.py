"""Canary: a fixed text that is scored before serving and periodically, to detect an engine that computes wrong scores.

The expected scores come from a plain forward pass over the same weights at start-up, so the canary does not detect
weights that were already wrong when they were loaded.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from calopd.core.errors import UnhealthyTeacher
from calopd.core.score_checks import check_scores
from services.teacher_scorer import prometheus
from services.teacher_scorer.engines.scoring_engine import ScoringEngine, SequenceToScore
from services.teacher_scorer.scheduler import Scheduler

log = logging.getLogger(__name__)

TEXT = (
    "A train leaves at 9:40 and arrives at 12:05. How long does it travel? From 9:40 to 12:00 there are 140 minutes, "
    "and 5 more make 145. Wait, let me check: 20 + 120 + 5 = 145. So the answer is \\boxed{145}."
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How well scores agree with the expected ones, over all tokens of the canary.

    Rounding differs between batch shapes, and in a mixture of experts it sends a few tokens to other experts, which
    moves their scores by tenths of a nat. A wrong engine moves most tokens, or all of them in proportion.
    """

    median: float
    """Median of the absolute differences, in nats."""
    far_share: float
    """Share of the tokens that differ by more than `Tolerance.far`."""
    slope: float
    """Of the scores against the expected ones, by least squares: about 1 / T for a temperature T."""

    @classmethod
    def between(cls, scores: np.ndarray, expected: np.ndarray, far: float) -> Self:
        difference = np.abs(scores - expected)
        centred = expected - expected.mean()
        spread = float(centred @ centred)
        slope = float(centred @ (scores - scores.mean())) / spread if spread > 0 else 1.0
        return cls(float(np.median(difference)), float(np.mean(difference > far)), slope)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Limits of an agreement."""

    median: float
    far: float
    far_share: float
    slope: float
    """Of the distance from 1."""

    def check(self, found: Agreement) -> None:
        """Raise UnhealthyTeacher, naming the limit that is exceeded."""
        if not found.median <= self.median:
            reason = f"the median token by {found.median:.2g} nats (tolerance {self.median:g})"
        elif not found.far_share <= self.far_share:
            reason = f"{found.far_share:.1%} of tokens by more than {self.far:g} nats (tolerance {self.far_share:.0%})"
        elif not abs(found.slope - 1) <= self.slope:
            reason = f"all by a factor of {found.slope:.3f} (tolerance {self.slope:g}), as at another temperature"
        else:
            return
        raise UnhealthyTeacher(f"canary scores deviate from those of a plain forward pass, {reason}")


TOLERANCE = {
    torch.float32: Tolerance(median=1e-3, far=1e-3, far_share=0.0, slope=0.01),
    torch.bfloat16: Tolerance(median=0.05, far=0.5, far_share=0.1, slope=0.05),
}


class Canary:
    """Compares the engine's scores of a fixed text with those of a plain forward pass at start-up."""

    def __init__(self, engine: ScoringEngine, ids: np.ndarray) -> None:
        # Two sequences with a common prefix reveal an architecture whose sequences interfere within a batch.
        cut = max(1, len(ids) // 4)
        self._sequences = [SequenceToScore(ids[:cut], ids[cut:]), SequenceToScore(ids[: 2 * cut], ids[cut:])]
        self._vocabulary_size = engine.vocabulary_size
        self._tolerance = TOLERANCE[engine.dtype]
        self._expected = [engine.reference(sequence) for sequence in self._sequences]
        for expected in self._expected:
            check_scores(expected, len(ids) - cut, engine.vocabulary_size)

    async def check(self, scheduler: Scheduler) -> None:
        """Raise UnhealthyTeacher if the scores differ from those at start-up."""
        found = []
        for scored, expected in zip(await scheduler.score(self._sequences, urgent=True), self._expected, strict=True):
            check_scores(scored.scores.logprobs, len(expected), self._vocabulary_size)
            found.append(scored.scores.logprobs)
        agreement = Agreement.between(np.concatenate(found), np.concatenate(self._expected), self._tolerance.far)
        prometheus.canary_deviation.set(agreement.median)
        self._tolerance.check(agreement)

    async def watch(
        self, scheduler: Scheduler, every: float, report: Callable[[UnhealthyTeacher | None], Awaitable[None]]
    ) -> None:
        """Check every `every` seconds and pass the result to `report`."""
        while True:
            try:
                await self.check(scheduler)
                prometheus.canary_healthy.set(1)
                await report(None)
            except Exception as error:  # any failure to score the canary also affects responses
                prometheus.canary_healthy.set(0)
                log.error("canary: %s", error)
                await report(error if isinstance(error, UnhealthyTeacher) else UnhealthyTeacher(f"canary: {error!r}"))
            prometheus.canary_time.set(time.time())
            await asyncio.sleep(every)
