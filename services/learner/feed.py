"""Rank 0 cuts the arriving trajectories into micro-batches for all ranks; each rank reads its own from Redis."""

from collections import deque
from collections.abc import Iterator

from calopd.core.types import Ticket
from calopd.transport.redis_queue import Arrival, Queue

BLOCK_SECONDS = 1.0
REOPEN_AFTER = 10


Round = list[list[int]]
"""What each rank does next: ticket indices, none for a rank that has nothing to do."""


class Cutter:
    """Micro-batches of at most `budget` tokens, padding included.

    With `deterministic` they are cut in the order of the tickets, so that neither the order of arrival nor a restart
    changes a bit of the gradient; without, in the order of arrival.
    """

    def __init__(self, expected: int, budget: int, *, deterministic: bool) -> None:
        self._expected, self._budget, self._deterministic = expected, budget, deterministic
        self._arrived: dict[int, int] = {}
        self._line: deque[int] = deque()
        self._next = 0
        self._open: list[int] = []
        self._closed: deque[list[int]] = deque()
        self.dead: list[int] = []

    @property
    def complete(self) -> bool:
        return len(self._arrived) == self._expected

    def arrive(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            if arrival.index in self._arrived:
                continue  # a queue that lost its data issues its tickets again
            self._arrived[arrival.index] = arrival.tokens
            if not arrival.tokens:
                self.dead.append(arrival.index)
            if not self._deterministic:
                self._line.append(arrival.index)
        while self._deterministic and self._next in self._arrived:
            self._line.append(self._next)
            self._next += 1
        while self._line:
            self._place(self._line.popleft())
        if self.complete:
            self._close()

    def _place(self, index: int) -> None:
        if not self._arrived[index]:
            return
        longest = max(self._arrived[i] for i in (*self._open, index))
        if self._open and longest * (len(self._open) + 1) > self._budget:
            self._close()
        self._open.append(index)

    def _close(self) -> None:
        if self._open:
            self._closed.append(self._open)
            self._open = []

    def take(self, ranks: int, *, hurry: bool = False) -> Round | None:
        """A round for all ranks, or None where it is better to wait; `hurry` uses what there is, if order allows."""
        hurry = hurry and not self._deterministic
        if hurry:
            self._close()
        if not self._closed or (len(self._closed) < ranks and not self.complete and not hurry):
            return None
        parts = [self._closed.popleft() for _ in range(min(ranks, len(self._closed)))]
        return parts + [[] for _ in range(ranks - len(parts))]


def rounds(queue: Queue, batch: str, tickets: list[Ticket], cutter: Cutter, ranks: int) -> Iterator[Round | None]:
    """Open a batch, and give rounds of it until all its tickets are done; None while there is nothing to do."""
    queue.open_batch(batch, tickets)
    idle = 0
    last = "0-0"
    while True:
        while (round_ := cutter.take(ranks)) is not None:
            yield round_
        if cutter.complete:
            return
        arrivals = queue.arrivals(batch, after=last, block_seconds=BLOCK_SECONDS)
        if arrivals:
            last, idle = arrivals[-1].entry, 0
            cutter.arrive(arrivals)
            continue
        idle += 1
        if idle % REOPEN_AFTER == 0:
            queue.open_batch(batch, tickets)  # nothing happens, unless the server came back without its data
        yield cutter.take(ranks, hurry=True)
