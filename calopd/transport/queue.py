"""The queue of a run: tickets for the rollout, trajectories for the learner, dead letters.

A backend for URLs `<scheme>://...` is a module `calopd.transport.<scheme>_queue` with a function
`open_queue(url, run, *, timeout_seconds)` that returns a subclass of `Queue`.
"""

import importlib
import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from calopd.core.errors import ConfigError
from calopd.core.types import Ticket, Trajectory
from calopd.transport.convert import ReceivedScores

_SUFFIX = "_queue"
_ALIASES = {"rediss": "redis", "unix": "redis"}
"""Schemes that another scheme's backend handles."""
TEACHER = "teacher"
"""Name of the pinned teacher."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A ticket held by a worker."""

    entry: str
    """The backend's id of this delivery."""
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Arrival:
    """A committed result."""

    entry: str
    """Pass the last one to `Queue.arrivals` to get those after it."""
    index: int
    """Index of the ticket in its batch."""
    tokens: int
    """Length of prompt and response; 0 = a dead letter, negative = the result was withdrawn and the ticket issued
    again."""
    policy_version: int = 0
    policy_sha256: str = ""
    """The weights that it was sampled from."""


def arrived_indices(arrivals: Iterable[Arrival]) -> set[int]:
    """The tickets that have a result or a dead letter, after all these arrivals."""
    found: set[int] = set()
    for arrival in arrivals:
        found.discard(arrival.index) if arrival.tokens < 0 else found.add(arrival.index)
    return found


Attempt = Literal["alone", "failed"]
"""Attempts at a ticket that are counted: with nothing else being sampled, and those that ended with an error."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """A published policy."""

    entry: str
    version: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Depth:
    """The amount of work in the queue."""

    waiting: int
    """Tickets that no worker holds."""
    claimed: int
    """Tickets held by workers."""
    oldest_seconds: float
    """Age of the oldest unfinished ticket."""
    dead: int
    """Dead letters of the run."""


class Queue(ABC):
    """The queue of one run. Every ticket yields exactly one result, even if workers are killed at any moment.

    All methods may be called from any thread.
    """

    run: str

    @abstractmethod
    def ping(self) -> None:
        """Raise QueueUnavailable if the server does not answer."""

    @abstractmethod
    def pin(self, name: str, value: bytes) -> bytes:
        """Store a value of the run unless one is stored by this name; returns the stored one."""

    @abstractmethod
    def pinned(self, name: str) -> bytes | None:
        """Return the stored value."""

    # The learner's side

    @abstractmethod
    def lead(self, owner: str, wait_seconds: float = 60.0) -> int:
        """Become the only learner of the run and return its epoch; calls of an earlier one raise LearnerReplaced.

        A learner with another `owner` that is alive is waited for; then ConfigError is raised.
        """

    @abstractmethod
    def stay_leader(self) -> None:
        """Show that this learner is alive; call it every few seconds."""

    @abstractmethod
    def open_batch(self, batch: str, tickets: Iterable[Ticket]) -> bool:
        """Issue the tickets of a batch; False if it is open for the same ones already.

        A batch that is open for others, such as those of another policy, is released first.
        """

    @abstractmethod
    def reissue(self, batch: str, tickets: Sequence[Ticket]) -> int:
        """Withdraw the results of tickets of an open batch and issue them again; returns their number."""

    @abstractmethod
    def withdraw_results(self, batch: str, indices: Sequence[int]) -> None:
        """Delete results that cannot be read; `reissue_lost` issues their tickets again."""

    @abstractmethod
    def reissue_lost(self, batch: str, tickets: Sequence[Ticket]) -> int:
        """Issue those tickets of an open batch again that have neither a result nor a place in the queue."""

    @abstractmethod
    def retry_dead_letters(self, ids: Collection[str] | None = None) -> list[Ticket]:
        """Issue dead letters of open batches again, all or those with these ids; returns them."""

    @abstractmethod
    def arrivals(self, batch: str, after: str = "0-0", block_seconds: float = 1.0) -> list[Arrival]:
        """Return the results committed after the entry `after`; wait at most `block_seconds` for the first."""

    @abstractmethod
    def results(self, batch: str, indices: Sequence[int]) -> list[Trajectory]:
        """Return the trajectories of these tickets."""

    @abstractmethod
    def release_batch(self, batch: str) -> None:
        """Delete the trajectories of a batch and withdraw its tickets: results of theirs that come later are dropped.

        Call it only after a durable checkpoint contains its step, or if the step will be repeated.
        """

    @abstractmethod
    def open_batches(self) -> list[str]:
        """Return the names of the batches that are not released, in sorted order."""

    @abstractmethod
    def announce_policy(self, version: int, sha256: str) -> None:
        """Tell the workers that a policy has been published."""

    @abstractmethod
    def requested_policies(self) -> set[int]:
        """Return the versions that workers have asked for since the last call."""

    @abstractmethod
    def dead_letters(self) -> list[tuple[Ticket, str]]:
        """Return the tickets that cannot be completed, each with its error."""

    @abstractmethod
    def depth(self) -> Depth:
        """Measure the queue; raises QueueUnavailable if the server does not answer."""

    # The rollout's side

    @abstractmethod
    def join(self) -> None:
        """Prepare the queue for workers. Idempotent."""

    @abstractmethod
    def own_claims(self, worker: str) -> list[Claim]:
        """Return the tickets that this worker held before it was restarted."""

    @abstractmethod
    def claim(self, worker: str, count: int, block_seconds: float = 1.0) -> list[Claim]:
        """Claim at most `count` free tickets of steps; wait at most `block_seconds` for the first."""

    @abstractmethod
    def claim_evaluations(self, worker: str, count: int) -> list[Claim]:
        """Claim at most `count` free tickets of evaluations, without waiting."""

    @abstractmethod
    def claim_abandoned(
        self, worker: str, count: int, idle_seconds: float, *, evaluations: bool = False
    ) -> list[Claim]:
        """Claim at most `count` tickets whose worker has not renewed its claim for `idle_seconds`."""

    @abstractmethod
    def active_workers(self, idle_seconds: float) -> int:
        """Return the number of workers that have called the queue within `idle_seconds`, this one included."""

    @abstractmethod
    def renew(self, worker: str, claims: Sequence[Claim]) -> None:
        """Renew the leases of claims that this worker still works on."""

    @abstractmethod
    def give_back(self, claim: Claim) -> None:
        """Make a ticket free again, with its count of deliveries reset; attempts stay counted."""

    @abstractmethod
    def deliveries(self, claim: Claim) -> int:
        """Return how often this ticket has been claimed."""

    @abstractmethod
    def count_attempt(self, claim: Claim, kind: Attempt, change: int = 1) -> int:
        """Change the number of attempts at this ticket and return it; a result or `reissue` sets it to 0."""

    @abstractmethod
    def commit(self, claim: Claim, trajectory: Trajectory, received: ReceivedScores | None = None) -> bool:
        """Store the result and complete the ticket atomically; False if it has a result or was withdrawn.

        `received` takes the place of `trajectory.scores`: the teacher's message is stored as it came.
        """

    @abstractmethod
    def dead_letter(self, claim: Claim, error: str) -> bool:
        """Complete a ticket without a result, and store it with its error; returns as `commit` does."""

    @abstractmethod
    def wait_for_policy(self, after: str, block_seconds: float) -> Announcement | None:
        """Return the newest announcement after the entry `after`; None if there is none within `block_seconds`."""

    @abstractmethod
    def request_policy(self, version: int) -> None:
        """Ask the learner to publish a policy again, whole: it is missing or damaged."""


def open_queue(url: str, run: str, *, timeout_seconds: float | None = None) -> Queue:
    """Open the queue of a run with the backend of the URL's scheme.

    With `timeout_seconds`, calls fail after that time; without it, lost connections are retried with backoff.
    """
    if not url:
        raise ConfigError(
            "queue.url is empty: set it, or the variable CALOPD__QUEUE__URL, to redis://user:password@host/0"
        )
    scheme = url.partition("://")[0]
    name = f"{__package__}.{_ALIASES.get(scheme, scheme)}{_SUFFIX}"
    try:
        if "://" not in url or not re.fullmatch("[a-z][a-z0-9]*", scheme):
            raise ModuleNotFoundError(name=name)
        backend = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # the backend exists; a package that it needs does not
            raise
        given = f"{scheme}://" if "://" in url else "a URL without a scheme"
        expected = ", ".join(f"{known}://" for known in _schemes())
        raise ConfigError(f"queue.url has {given}, for which there is no backend: expected one of {expected}") from None
    queue: Queue = backend.open_queue(url, run, timeout_seconds=timeout_seconds)
    return queue


def _schemes() -> list[str]:
    import calopd.transport

    modules = (module.name for module in pkgutil.iter_modules(calopd.transport.__path__))
    return sorted({*_ALIASES, *(name.removesuffix(_SUFFIX) for name in modules if name.endswith(_SUFFIX))})
