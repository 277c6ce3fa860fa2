"""Canary: a fixed text that is scored before serving and periodically, to detect an engine that computes wrong scores.

The expected scores come from a plain forward pass over the same weights at start-up, so the canary does not detect
weights that were already wrong when they were loaded.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

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
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Maximum difference per token, in nats, between the batched engine and the plain forward pass."""


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
        deviation = 0.0
        for scored, expected in zip(await scheduler.score(self._sequences, urgent=True), self._expected, strict=True):
            logprobs = scored.scores.logprobs
            check_scores(logprobs, len(expected), self._vocabulary_size)
            deviation = max(deviation, float(np.abs(logprobs - expected).max()))
        prometheus.canary_deviation.set(deviation)
        if deviation > self._tolerance:
            raise UnhealthyTeacher(
                f"canary scores deviate by {deviation:.2g} nats, more than the tolerance of {self._tolerance:g}"
            )

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
