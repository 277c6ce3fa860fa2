"""Dynamic batching: rank 0 groups arriving trajectories into micro-batches, each rank reads its own from Redis."""

from collections import deque
from collections.abc import Iterator

from calopd.core.types import Ticket
from calopd.transport.queue import Arrival, Queue

BLOCK_SECONDS = 1.0
REOPEN_AFTER = 10
"""Empty polls after which a batch is opened again, in case Redis restarted without its data."""


Assignment = list[list[int]]
"""The next micro-batch of every rank, as ticket indices; empty for a rank that has no work."""


class DynamicBatcher:
    """Groups trajectories into micro-batches of at most `max_tokens` tokens; a longer one is alone in its micro-batch.

    With `deterministic` they are grouped in the order of their tickets: neither the order of arrival nor a restart
    changes a bit of the gradient. Otherwise they are grouped in the order of arrival.
    """

    def __init__(self, expected: int, max_tokens: int, *, deterministic: bool) -> None:
        self._expected, self._max_tokens, self._deterministic = expected, max_tokens, deterministic
        self._tokens: dict[int, int] = {}
        """Ticket index -> tokens of its trajectory, 0 for a dead letter."""
        self._next_index = 0
        self._open: list[int] = []
        self._ready: deque[list[int]] = deque()

    @property
    def complete(self) -> bool:
        """Whether every ticket has arrived, as a trajectory or as a dead letter."""
        return len(self._tokens) == self._expected

    def add(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            if arrival.index in self._tokens:
                continue  # Redis lost its data and issued the ticket again
            self._tokens[arrival.index] = arrival.tokens
            if not self._deterministic:
                self._append(arrival.index)
        while self._deterministic and self._next_index in self._tokens:
            self._append(self._next_index)
            self._next_index += 1
        if self.complete:
            self._close()

    def _append(self, index: int) -> None:
        if not self._tokens[index]:
            return
        if self._open and sum(self._tokens[i] for i in (*self._open, index)) > self._max_tokens:
            self._close()
        self._open.append(index)

    def _close(self) -> None:
        if self._open:
            self._ready.append(self._open)
            self._open = []

    def take(self, ranks: int, *, flush: bool = False) -> Assignment | None:
        """One micro-batch per rank, or None while there are too few.

        `flush` does not wait for micro-batches to fill up. It has no effect with `deterministic`.
        """
        flush = flush and not self._deterministic
        if flush:
            self._close()
        if not self._ready or (len(self._ready) < ranks and not self.complete and not flush):
            return None
        taken = [self._ready.popleft() for _ in range(min(ranks, len(self._ready)))]
        return taken + [[] for _ in range(ranks - len(taken))]


def assignments(
    queue: Queue, batch: str, tickets: list[Ticket], batcher: DynamicBatcher, ranks: int
) -> Iterator[Assignment | None]:
    """Yield assignments of an open batch until all its tickets are done; None at least once per second of waiting."""
    empty_polls = 0
    last = "0-0"
    while True:
        while (assignment := batcher.take(ranks)) is not None:
            yield assignment
        if batcher.complete:
            return
        arrivals = queue.arrivals(batch, after=last, block_seconds=BLOCK_SECONDS)
        if arrivals:
            last, empty_polls = arrivals[-1].entry, 0
            batcher.add(arrivals)
            yield batcher.take(ranks)
            continue
        empty_polls += 1
        if empty_polls % REOPEN_AFTER == 0:
            queue.open_batch(batch, tickets)  # has no effect unless Redis restarted without its data
        yield batcher.take(ranks, flush=True)
