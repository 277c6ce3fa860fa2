"""Canary: a fixed text that is scored before serving and periodically, to detect an engine that computes wrong scores.

The expected scores come from a plain forward pass over the same weights at start-up, so this canary does not detect
weights that were already wrong when they were loaded. The rollouts do: they compare with the scores pinned in the run.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import numpy as np

from calopd.core.canary_scores import Agreement, tolerance
from calopd.core.errors import UnhealthyTeacher
from calopd.core.score_checks import check_scores
from calopd.models.devices import dtype_name
from services.teacher_scorer import prometheus
from services.teacher_scorer.engines.scoring_engine import ScoringEngine, SequenceToScore
from services.teacher_scorer.scheduler import Scheduler

log = logging.getLogger(__name__)

SHORTEST_LIMIT_SECONDS = 30.0
"""A check may take this long, however often it is made: it waits for the batch that is being scored."""


class Canary:
    """Compares the engine's scores of a fixed text with those of a plain forward pass at start-up."""

    def __init__(self, engine: ScoringEngine, ids: np.ndarray) -> None:
        # Two sequences with a common prefix reveal an architecture whose sequences interfere within a batch.
        cut = max(1, len(ids) // 4)
        self._sequences = [SequenceToScore(ids[:cut], ids[cut:]), SequenceToScore(ids[: 2 * cut], ids[cut:])]
        self._vocabulary_size = engine.vocabulary_size
        self._tolerance = tolerance([dtype_name(engine.dtype)])
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
        """Check every `every` seconds and pass the result to `report`. A check that takes longer fails."""
        limit = max(every, SHORTEST_LIMIT_SECONDS)
        while True:
            try:
                try:
                    async with asyncio.timeout(limit):
                        await self.check(scheduler)
                except TimeoutError:
                    raise UnhealthyTeacher(f"the canary was not scored within {limit:g} s") from None
                prometheus.canary_healthy.set(1)
                await report(None)
            except Exception as error:  # any failure to score the canary also affects responses
                prometheus.canary_healthy.set(0)
                log.error("canary: %s", error)
                await report(error if isinstance(error, UnhealthyTeacher) else UnhealthyTeacher(f"canary: {error!r}"))
            prometheus.canary_time.set(time.time())
            await asyncio.sleep(every)
