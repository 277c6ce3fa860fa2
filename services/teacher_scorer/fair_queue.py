"""Fair queue: clients get equal shares of the tokens, and long requests do not block short ones."""

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from time import monotonic

from services.teacher_scorer.engines.scoring_engine import SequenceScores, SequenceToScore


@dataclass(frozen=True, slots=True)
class TimedScores:
    scores: SequenceScores
    seconds: float
    """Time of the forward pass, attributed to this sequence in proportion to its tokens."""


@dataclass(slots=True, eq=False)
class Request:
    """Sequences that are answered in one response."""

    client: str
    sequences: list[SequenceToScore]
    urgent: bool = False
    future: "Future[list[TimedScores]]" = field(default_factory=Future)
    since: float = field(default_factory=monotonic)
    results: dict[int, TimedScores] = field(default_factory=dict)
    taken: int = 0
    """Number of sequences that are already in a batch."""
    turn: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(sequence.tokens for sequence in self.sequences)


@dataclass(slots=True)
class _Client:
    served: float
    """Tokens scored for this client, starting from the level of the other clients when it joined."""
    requests: list[Request] = field(default_factory=list)


class FairQueue:
    """Orders requests for batches.

    The client with the fewest scored tokens is next. Of its requests, the one with the lowest turn is next: the tokens
    scored for the client when the request arrived, plus the tokens of the request. A short request may overtake a long
    one, but later requests can delay a request by at most as many tokens as it has itself.
    """

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._served = 0.0
        self._names = count()

    def __len__(self) -> int:
        return sum(len(client.requests) for client in self._clients.values())

    def add(self, request: Request) -> None:
        # An urgent request, such as the canary, is a separate client that precedes all others.
        name = f"\0{next(self._names)}" if request.urgent else request.client
        request.client = name
        client = self._clients.setdefault(name, _Client(float("-inf") if request.urgent else self._served))
        request.turn = client.served + request.tokens
        client.requests.append(request)

    def remove(self, request: Request) -> None:
        """Remove a request if it is queued."""
        client = self._clients.get(request.client)
        if client is not None and request in client.requests:
            client.requests.remove(request)
            if not client.requests:
                del self._clients[request.client]

    def take(self, budget: int, *, separately: bool = False) -> list[tuple[Request, int]]:
        """The next batch: sequences (request, index) of at most `budget` tokens; a single sequence may exceed it.

        With `separately`, all of one request, however many batches it takes: their composition depends on it alone.
        """
        batch: list[tuple[Request, int]] = []
        room = budget
        while self._clients:
            if not (separately and batch):
                client = min(self._clients.values(), key=lambda c: c.served)
                request = min(client.requests, key=lambda r: r.turn)
            elif request.taken == len(request.sequences):
                break
            tokens = request.sequences[request.taken].tokens
            if batch and tokens > room:
                break
            batch.append((request, request.taken))
            room -= tokens
            self._served = max(self._served, client.served)
            client.served += tokens
            request.taken += 1
            if request.taken == len(request.sequences):
                self.remove(request)
        return batch


def tokens_of(batch: Iterable[tuple[Request, int]]) -> int:
    return sum(request.sequences[index].tokens for request, index in batch)
