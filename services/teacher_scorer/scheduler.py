"""Scheduler of the teacher: one thread forms batches from all waiting requests and runs the engine."""

import asyncio
import logging
import threading
import time
from collections import defaultdict

from calopd.core.activity import ActivityClock
from calopd.core.errors import EngineFailed, Overloaded
from calopd.core.heartbeat import Heartbeat
from calopd.tracking.trace import span
from services.teacher_scorer import prometheus
from services.teacher_scorer.engines.scoring_engine import ScoringEngine, SequenceToScore
from services.teacher_scorer.fair_queue import FairQueue, Request, TimedScores, tokens_of

log = logging.getLogger(__name__)

Batch = list[tuple[Request, int]]


class Scheduler:
    """Owns the engine: nothing else calls the engine once the scheduler has started."""

    def __init__(
        self,
        engine: ScoringEngine,
        *,
        batch_tokens: int,
        max_waiting: int,
        separately: bool = False,
        process: str = "",
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """With `separately`, no batch holds sequences of two requests: scores do not depend on what else is asked."""
        self._engine = engine
        self._separately = separately
        self.heartbeat = heartbeat or Heartbeat()
        self.clock = ActivityClock(process)
        self._batch_tokens = batch_tokens
        self._max_waiting = max_waiting
        self._queue = FairQueue()
        self._open = 0
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="scoring-engine", daemon=True)
        self._thread.start()

    async def score(
        self, sequences: list[SequenceToScore], *, client: str = "", urgent: bool = False
    ) -> list[TimedScores]:
        """Score the sequences of one request; cancelling the caller frees the request's slot immediately.

        An `urgent` request is exempt from the limit on waiting requests and is scored first.
        """
        if self._open >= self._max_waiting and not urgent:
            raise Overloaded(f"{self._open} requests are waiting, the limit of teacher.max_waiting: retry later")
        request = Request(client, sequences, urgent)
        self._count(1)
        try:
            with self._changed:
                self._queue.add(request)
                self._changed.notify()
            return await asyncio.wrap_future(request.future)
        finally:
            self._count(-1)
            with self._changed:
                self._queue.remove(request)

    def _count(self, change: int) -> None:
        self._open += change
        prometheus.waiting.set(self._open)
        self.clock.hold(self._open)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _next_batch(self) -> Batch:
        with self._changed, span("wait"):
            self._changed.wait_for(lambda: self._stopped or len(self._queue))
            return [] if self._stopped else self._queue.take(self._batch_tokens, separately=self._separately)

    def _run(self) -> None:
        while batch := self._next_batch():
            start = time.monotonic()
            for request in {request for request, index in batch if index == 0}:
                prometheus.wait_seconds.observe(start - request.since)
                prometheus.phase_seconds.labels("wait").inc(start - request.since)
            prometheus.batch_fill.observe(tokens_of(batch) / self._batch_tokens)
            prometheus.batch_sequences.observe(len(batch))
            try:
                self._score(batch)
            except Exception as error:
                log.exception("a batch of %d sequences failed", len(batch))
                self._one_by_one(batch, error)

    def _one_by_one(self, batch: Batch, error: Exception) -> None:
        """Retry the requests of a failed batch separately, so that only those that fail again get an error."""
        requests: defaultdict[Request, Batch] = defaultdict(list)
        for request, index in batch:
            requests[request].append((request, index))
        for request, own in requests.items():
            try:
                if len(requests) == 1:
                    raise error
                self._score(own)
            except Exception as failure:
                if not request.future.done() and request.future.set_running_or_notify_cancel():
                    request.future.set_exception(EngineFailed(f"the engine failed on this request: {failure!r}"))
                with self._changed:
                    self._queue.remove(request)

    def _score(self, batch: Batch) -> None:
        start = time.monotonic()
        under_way = self.heartbeat.work(f"a batch of {len(batch)} sequences in the scoring engine")
        with self.clock.computing(), under_way, span("score batch", sequences=len(batch), tokens=tokens_of(batch)):
            passed = self._engine.score([request.sequences[index] for request, index in batch])
        seconds = time.monotonic() - start
        total = tokens_of(batch)
        prometheus.busy_seconds.inc(seconds)
        prometheus.phase_seconds.labels("forward").inc(passed.forward_seconds)
        prometheus.phase_seconds.labels("head").inc(passed.head_seconds)
        prometheus.forward_tokens.inc(passed.computed_tokens)
        prometheus.reused_tokens.inc(total - passed.computed_tokens)
        prometheus.padding_tokens.inc(passed.padding_tokens)
        for (request, index), scores in zip(batch, passed.scores, strict=True):
            request.results[index] = TimedScores(scores, seconds * request.sequences[index].tokens / total)
            if len(request.results) == len(request.sequences) and request.future.set_running_or_notify_cancel():
                request.future.set_result([request.results[i] for i in range(len(request.sequences))])
