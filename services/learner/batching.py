"""Dynamic batching: rank 0 groups arriving trajectories into micro-batches, each rank reads its own from Redis.

The ranks pass through the layers together (FSDP): a round, one micro-batch per rank, takes as long as its costliest
micro-batch. So the trajectories of a round are divided by cost, which grows faster than their length.
"""

import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from calopd.core.types import Ticket
from calopd.transport.queue import Arrival, Queue

log = logging.getLogger(__name__)

BLOCK_SECONDS = 1.0
SETTLE_SECONDS = 0.02
"""Time that idle ranks wait for more if there are fewer trajectories than ranks."""
REOPEN_AFTER = 10
"""Empty polls after which a batch is opened again, in case Redis restarted without its data."""


Assignment = list[list[int]]
"""The next micro-batch of every rank, as ticket indices; empty for a rank that has no work."""


@dataclass(frozen=True, slots=True)
class PolicyWanted:
    """Beside the rounds: all ranks publish the newest policy again, because a rollout cannot read it."""

    version: int


Cost = Callable[[int], float]
"""Tokens of a trajectory -> time of its forward and backward pass, in any unit."""


class DynamicBatcher:
    """Divides trajectories into rounds of one micro-batch per rank.

    A micro-batch has at most `max_tokens` tokens; a longer trajectory is alone in its micro-batch. Ranks that are idle
    start on what is there. With `deterministic` rounds are filled in the order of tickets: neither the order of arrival
    nor a restart changes a bit of the gradient.
    """

    def __init__(
        self, expected: int, max_tokens: int, *, ranks: int = 1, deterministic: bool = False, cost: Cost = float
    ) -> None:
        self._expected, self._max_tokens, self._deterministic = expected, max_tokens, deterministic
        self._ranks, self._cost = ranks, cost
        self._tokens: dict[int, int] = {}
        """Ticket index -> tokens of its trajectory, 0 for a dead letter."""
        self._next_index = 0
        self._waiting: list[int] = []
        self._ready: deque[Assignment] = deque()
        """Rounds that are closed, in the order of tickets."""

    @property
    def complete(self) -> bool:
        """Whether every ticket has arrived, as a trajectory or as a dead letter."""
        return len(self._tokens) == self._expected

    @property
    def waiting(self) -> int:
        """Trajectories that have arrived and are not assigned; with `deterministic`, none that could be."""
        return 0 if self._deterministic else len(self._waiting)

    def add(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            if arrival.tokens < 0:
                self._withdraw(arrival.index)
                continue
            if arrival.index in self._tokens:
                continue  # Redis lost its data and issued the ticket again
            self._tokens[arrival.index] = arrival.tokens
            if not self._deterministic and arrival.tokens:
                self._waiting.append(arrival.index)
            if self._deterministic and arrival.index < self._next_index:
                self._append(arrival.index)
        while self._deterministic and self._next_index in self._tokens:
            self._append(self._next_index)
            self._next_index += 1
        if self._deterministic and self.complete and self._waiting:
            self._ready.append(self._round(self._waiting)[0])
            self._waiting = []

    def _withdraw(self, index: int) -> None:
        """Forget a result that was withdrawn, unless it is assigned already."""
        ahead = self._deterministic and index >= self._next_index
        if index in self._waiting:
            self._waiting.remove(index)
            ahead = True
        if ahead or self._tokens.get(index) == 0:
            self._tokens.pop(index, None)

    def _append(self, index: int) -> None:
        """Add the next ticket to the open round, or to a new one if it does not fit."""
        if not self._tokens[index]:
            return
        if self._round([*self._waiting, index])[1]:
            self._ready.append(self._round(self._waiting)[0])
            self._waiting = []
        self._waiting.append(index)

    def _round(self, indices: Sequence[int]) -> tuple[Assignment, list[int]]:
        return balanced_round(indices, self._tokens, ranks=self._ranks, max_tokens=self._max_tokens, cost=self._cost)

    def take(self, *, flush: bool = False) -> Assignment | None:
        """The next round, or None while there are fewer trajectories than ranks.

        `flush` does not wait for so many. It has no effect with `deterministic`.
        """
        if self._deterministic:
            return self._ready.popleft() if self._ready else None
        if not self._waiting or (len(self._waiting) < self._ranks and not self.complete and not flush):
            return None
        taken, self._waiting = self._round(self._waiting)
        return taken

    def rounds(self) -> list[Assignment]:
        """All trajectories of a complete step again, in full rounds: for a method that had to see them all first."""
        assert self.complete
        again = DynamicBatcher(
            self._expected,
            self._max_tokens,
            ranks=self._ranks,
            deterministic=self._deterministic,
            cost=self._cost,
        )
        again.add([Arrival("", index, tokens) for index, tokens in sorted(self._tokens.items())])
        return list(iter(again.take, None))


def balanced_round(
    indices: Sequence[int], tokens: dict[int, int], *, ranks: int, max_tokens: int, cost: Cost
) -> tuple[Assignment, list[int]]:
    """One micro-batch per rank, and what is left over.

    The costliest trajectory comes first, each goes to the rank with the least cost so far: no rank gets a second one
    while another has none. A micro-batch lists its trajectories in the order of tickets.
    """
    shares: Assignment = [[] for _ in range(ranks)]
    used, costs = [0] * ranks, [0.0] * ranks
    left = []
    for index in sorted(indices, key=lambda i: (-tokens[i], i)):
        fitting = [r for r in range(ranks) if not shares[r] or used[r] + tokens[index] <= max_tokens]
        if not fitting:
            left.append(index)
            continue
        rank = min(fitting, key=costs.__getitem__)
        shares[rank].append(index)
        used[rank] += tokens[index]
        costs[rank] += cost(tokens[index])
    return [sorted(share) for share in shares], sorted(left)


def restore_batch(queue: Queue, batch: str, tickets: Sequence[Ticket]) -> str:
    """Issue the tickets again that the queue has lost; return the entry to read arrivals after.

    A server that restarted without its last changes lacks some, and if its clock was set back it numbers arrivals from
    before the last one that was read. An entry that was damaged has been removed.
    """
    lost = len(tickets) if queue.open_batch(batch, tickets) else queue.reissue_lost(batch, tickets)
    if lost:
        log.warning("%d tickets of %s were lost by the queue and are issued again", lost, batch)
    return "0-0"


def of_tickets(arrivals: Iterable[Arrival], tickets: Container[int], batch: str) -> list[Arrival]:
    """The arrivals of these tickets; `restore_batch` issues those again whose arrival was damaged."""
    found = []
    for arrival in arrivals:
        if arrival.index in tickets:
            found.append(arrival)
        else:
            log.error("arrival %s of %s is of no ticket: index %d", arrival.entry, batch, arrival.index)
    return found


def assignments(
    queue: Queue,
    batch: str,
    tickets: list[Ticket],
    batcher: DynamicBatcher,
    accepts: Callable[[Arrival], bool] = lambda arrival: True,
) -> Iterator[Assignment | None]:
    """Yield the rounds of an open batch until all its tickets are done; None at least once per second of waiting.

    The next item is asked for when the ranks are idle: what has arrived by then is assigned at once. Results that
    `accepts` refuses are withdrawn, and their tickets issued again.
    """
    by_index = {ticket.index: ticket for ticket in tickets}
    empty_polls, last, block = 0, "0-0", BLOCK_SECONDS
    while not batcher.complete:
        arrivals = queue.arrivals(batch, after=last, block_seconds=block)
        if arrivals:
            last, empty_polls = arrivals[-1].entry, 0
            known = of_tickets(arrivals, by_index, batch)
            refused = [a for a in known if a.tokens > 0 and not accepts(a)]
            newest = {arrival.index: arrival for arrival in known}
            # Arrivals are read again after `restore_batch`: one that was refused before has been replaced.
            if again := [a.index for a in refused if newest[a.index] is a]:
                log.error("%d results of %s are not of its policy: their tickets are issued again", len(again), batch)
                queue.reissue(batch, [by_index[index] for index in again])
            batcher.add([arrival for arrival in known if arrival not in refused])
        elif block == BLOCK_SECONDS:
            empty_polls += 1
            if empty_polls % REOPEN_AFTER == 0:
                last = restore_batch(queue, batch, tickets)
        assignment = batcher.take(flush=not arrivals)
        yield assignment
        block = 0.0 if assignment else SETTLE_SECONDS if batcher.waiting else BLOCK_SECONDS
    yield from iter(batcher.take, None)
