"""Requests wait here, and one thread feeds the engine with batches cut from all that wait."""

import asyncio
import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from calopd.errors import EngineFailed, Overloaded
from services.teacher_scorer import metrics
from services.teacher_scorer.batching import cut_batch
from services.teacher_scorer.engine import ScoringEngine, SequenceScores, SequenceToScore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scored:
    scores: SequenceScores
    seconds: float
    """This sequence's share of the forward pass, by tokens."""


@dataclass(slots=True)
class _Waiting:
    sequence: SequenceToScore
    future: "Future[Scored]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


class Scheduler:
    """Owns the engine: nothing else calls it once this has started."""

    def __init__(self, engine: ScoringEngine, *, batch_tokens: int, max_waiting: int) -> None:
        self._engine = engine
        self._batch_tokens = batch_tokens
        self._max_waiting = max_waiting
        self._waiting: list[_Waiting] = []
        self._requests = 0
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="scoring-engine", daemon=True)
        self._thread.start()

    async def score(self, sequences: list[SequenceToScore], *, urgent: bool = False) -> list[Scored]:
        """Scores of the sequences of one request; dropped from the queue when the caller is cancelled.

        `urgent` is admitted however many wait.
        """
        if self._requests >= self._max_waiting and not urgent:
            raise Overloaded(
                f"{self._requests} requests wait, as many as teacher.max_waiting admits: send it again later"
            )
        items = [_Waiting(sequence) for sequence in sequences]
        self._requests += 1
        metrics.waiting.set(self._requests)
        try:
            with self._changed:
                self._waiting += items
                self._changed.notify()
            return list(await asyncio.gather(*(asyncio.wrap_future(item.future) for item in items)))
        finally:
            self._requests -= 1
            metrics.waiting.set(self._requests)
            for item in items:
                item.future.cancel()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _next_batch(self) -> list[_Waiting]:
        with self._changed:
            while True:
                self._waiting = [item for item in self._waiting if not item.future.cancelled()]
                if self._stopped:
                    return []
                if self._waiting:
                    break
                self._changed.wait()
            chosen = set(cut_batch([item.sequence.tokens for item in self._waiting], self._batch_tokens))
            batch = [item for i, item in enumerate(self._waiting) if i in chosen]
            self._waiting = [item for i, item in enumerate(self._waiting) if i not in chosen]
        return [item for item in batch if item.future.set_running_or_notify_cancel()]

    def _run(self) -> None:
        while not self._stopped:
            batch = self._next_batch()
            if not batch:
                continue
            start = time.monotonic()
            try:
                scores = self._engine.score([item.sequence for item in batch])
            except Exception as error:  # an engine that fails on one batch goes on with the next
                log.exception("a batch of %d sequences failed", len(batch))
                for item in batch:
                    item.future.set_exception(EngineFailed(f"the engine failed on a batch: {error!r}"))
                continue
            seconds = time.monotonic() - start
            total = sum(item.sequence.tokens for item in batch)
            padded = len(batch) * max(item.sequence.tokens for item in batch)
            metrics.busy_seconds.inc(seconds)
            metrics.forward_tokens.inc(padded)
            metrics.padding_tokens.inc(padded - total)
            metrics.batch_sequences.observe(len(batch))
            for item, result in zip(batch, scores, strict=True):
                metrics.wait_seconds.observe(start - item.since)
                item.future.set_result(Scored(result, seconds * item.sequence.tokens / total))
