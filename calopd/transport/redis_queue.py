"""Tickets, results and dead letters in Redis: every trajectory counts once, whoever is killed.

Keys of a run (prefix `calopd:<run>:`):
  tickets            stream, consumer group `rollout`: what is to be written for a step
  evaluations        the same for evaluations: a replica takes from it only while it has nothing to write for a step
  batches            hash, batch -> open | released
  results:<batch>    hash, ticket index -> trajectory; the first result wins, '' = a dead letter
  arrivals:<batch>   stream of (index, tokens): small, so that rank 0 can plan without reading trajectories
  policies           stream of published policy versions
  dead               stream of what was set aside, with the error

Each change of state is one Lua script, so that a kill -9 falls before or after it, never into it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from calopd.core.errors import ConfigError
from calopd.core.types import EVALUATION, Ticket, Trajectory
from calopd.transport import convert
from calopd.transport.v1 import queue_pb2

GROUP = "rollout"

_OPEN = """
if redis.call('HGET', KEYS[1], ARGV[1]) == 'open' then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], 'open')
for i = 2, #ARGV do redis.call('XADD', KEYS[2], '*', 't', ARGV[i]) end
return 1
"""

# Also the way of a dead letter: its result is the empty string, and its reason stands in the dead stream.
_COMMIT = """
local fresh = 0
if redis.call('HGET', KEYS[1], ARGV[1]) == 'open' then
  fresh = redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[3])
  if fresh == 1 then
    redis.call('XADD', KEYS[3], '*', 'i', ARGV[2], 'n', ARGV[4])
    if ARGV[7] ~= '' then redis.call('XADD', KEYS[5], '*', 't', ARGV[8], 'error', ARGV[7]) end
  end
end
redis.call('XACK', KEYS[4], ARGV[5], ARGV[6])
redis.call('XDEL', KEYS[4], ARGV[6])
return fresh
"""

# A ticket that its worker gives up is there for anybody, as if it had never been taken.
_PUT_BACK = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if redis.call('XDEL', KEYS[1], ARGV[2]) == 1 then redis.call('XADD', KEYS[1], '*', 't', ARGV[3]) end
return 1
"""

_CLOSE = """
redis.call('HSET', KEYS[1], ARGV[1], 'released')
redis.call('DEL', KEYS[2], KEYS[3])
return 1
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """A ticket in the hands of a worker."""

    entry: str
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Arrival:
    """A committed result: where it is, and how long prompt + response are (0 = a dead letter)."""

    entry: str
    index: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Depth:
    """Tickets that nobody has, those in the hands of workers, the age of the oldest, and dead letters."""

    waiting: int
    claimed: int
    oldest_seconds: float
    dead: int


def connect(url: str) -> "redis.Redis":
    """A client that retries a lost connection with backoff."""
    if not url:
        raise ConfigError(
            "queue.url is empty: set it, or the variable CALOPD__QUEUE__URL, to redis://user:password@host/0"
        )
    return redis.Redis.from_url(
        url,
        retry=Retry(ExponentialBackoff(cap=2.0, base=0.05), retries=8),
        retry_on_error=[redis.ConnectionError, redis.TimeoutError],
        socket_connect_timeout=5,
        health_check_interval=15,
    )


class Queue:
    """The queue of one run. Safe to use from several threads."""

    def __init__(self, client: "redis.Redis", run: str) -> None:
        # redis-py types every reply as a union of sync and async; the replies are checked by the tests instead.
        self.client: Any = client
        self.run = run
        self._open = client.register_script(_OPEN)
        self._commit = client.register_script(_COMMIT)
        self._put_back = client.register_script(_PUT_BACK)
        self._close = client.register_script(_CLOSE)

    def _key(self, *parts: str) -> str:
        return ":".join(("calopd", self.run, *parts))

    def _stream(self, batch: str) -> str:
        return self._key("evaluations" if batch.startswith(EVALUATION) else "tickets")

    @property
    def _both(self) -> tuple[str, str]:
        return self._key("tickets"), self._key("evaluations")

    # The learner's side

    def open_batch(self, batch: str, tickets: Iterable[Ticket]) -> bool:
        """Issue the tickets of a batch; False where they are out already. A released batch is issued anew."""
        payloads = [convert.ticket_to_message(ticket).SerializeToString() for ticket in tickets]
        return bool(self._open(keys=[self._key("batches"), self._stream(batch)], args=[batch, *payloads]))

    def arrivals(self, batch: str, after: str = "0-0", block_seconds: float = 1.0) -> list[Arrival]:
        """Results committed since the entry `after`; waits at most `block_seconds` for the first."""
        reply = self.client.xread({self._key("arrivals", batch): after}, block=max(1, int(block_seconds * 1000)))
        entries = _streams(reply)[0][1] if reply else []
        return [Arrival(entry.decode(), int(fields[b"i"]), int(fields[b"n"])) for entry, fields in entries]

    def results(self, batch: str, indices: Sequence[int]) -> list[Trajectory]:
        """The trajectories of these tickets."""
        if not indices:
            return []
        payloads = self.client.hmget(self._key("results", batch), [str(i) for i in indices])
        return [convert.trajectory_from_bytes(payload) for payload in payloads]

    def release_batch(self, batch: str) -> None:
        """Forget the trajectories of a batch: only after a durable checkpoint contains its step."""
        keys = [self._key("batches"), self._key("results", batch), self._key("arrivals", batch)]
        self._close(keys=keys, args=[batch])

    def open_batches(self) -> list[str]:
        """Batches that are not released, oldest first."""
        states = self.client.hgetall(self._key("batches"))
        return sorted(name.decode() for name, state in states.items() if state == b"open")

    def announce_policy(self, version: int, sha256: str) -> None:
        self.client.xadd(self._key("policies"), {"version": version, "sha256": sha256}, maxlen=64)

    # The rollout's side

    def join(self) -> None:
        """Create the consumer groups; calling it again does no harm."""
        for stream in self._both:
            try:
                self.client.xgroup_create(stream, GROUP, id="0", mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    def own_claims(self, worker: str) -> list[Claim]:
        """What this worker had in hand before it was restarted."""
        read = self.client.xreadgroup
        return [c for s in self._both for c in self._claims(read(GROUP, worker, {s: "0"}, count=10_000))]

    def claim(self, worker: str, count: int, block_seconds: float = 1.0) -> list[Claim]:
        """At most `count` tickets of steps that nobody has."""
        reply = self.client.xreadgroup(
            GROUP, worker, {self._key("tickets"): ">"}, count=count, block=max(1, int(block_seconds * 1000))
        )
        return self._claims(reply)

    def claim_evaluations(self, worker: str, count: int) -> list[Claim]:
        """At most `count` tickets of evaluations that nobody has; does not wait for any."""
        return self._claims(self.client.xreadgroup(GROUP, worker, {self._key("evaluations"): ">"}, count=count))

    def _claims(self, reply: Any) -> list[Claim]:
        entries = _streams(reply)[0][1] if reply else []
        return [_claim(entry, fields) for entry, fields in entries if fields]

    def claim_abandoned(
        self, worker: str, count: int, idle_seconds: float, *, evaluations: bool = False
    ) -> list[Claim]:
        """At most `count` tickets whose worker has not been heard of for `idle_seconds`."""
        stream = self._both[evaluations]
        reply = self.client.xautoclaim(stream, GROUP, worker, min_idle_time=int(idle_seconds * 1000), count=count)
        return [_claim(entry, fields) for entry, fields in reply[1] if fields]

    def keep(self, worker: str, claims: Sequence[Claim]) -> None:
        """Say that this worker still works on these."""
        for stream in self._both:
            entries = [claim.entry for claim in claims if self._stream(claim.ticket.batch) == stream]
            if entries:
                self.client.xclaim(stream, GROUP, worker, min_idle_time=0, message_ids=entries, justid=True)

    def put_back(self, claim: Claim) -> None:
        """Give a ticket up: anybody may take it, at once and with all of its attempts."""
        raw = convert.ticket_to_message(claim.ticket).SerializeToString()
        self._put_back(keys=[self._stream(claim.ticket.batch)], args=[GROUP, claim.entry, raw])

    def deliveries(self, claim: Claim) -> int:
        """How often this ticket has been taken up."""
        stream = self._stream(claim.ticket.batch)
        pending = self.client.xpending_range(stream, GROUP, min=claim.entry, max=claim.entry, count=1)
        return int(pending[0]["times_delivered"]) if pending else 0

    def commit(self, claim: Claim, trajectory: Trajectory) -> bool:
        """Result in, ticket done, in one step; False where another result was first or the batch is over."""
        tokens = len(trajectory.prompt_ids) + len(trajectory.sample.response_ids)
        return self._finish(claim, convert.trajectory_to_bytes(trajectory), tokens, "")

    def bury(self, claim: Claim, error: str) -> bool:
        """Set a ticket aside with the reason; the step learns that it lacks one."""
        return self._finish(claim, b"", 0, error)

    def _finish(self, claim: Claim, payload: bytes, tokens: int, error: str) -> bool:
        ticket = claim.ticket
        keys = [
            self._key("batches"),
            self._key("results", ticket.batch),
            self._key("arrivals", ticket.batch),
            self._stream(ticket.batch),
            self._key("dead"),
        ]
        raw = convert.ticket_to_message(ticket).SerializeToString()
        args = [ticket.batch, ticket.index, payload, tokens, GROUP, claim.entry, error, raw]
        return bool(self._commit(keys=keys, args=args))

    def policy_announced(self, after: str, block_seconds: float) -> tuple[str, int, str] | None:
        """The newest announcement after an entry (its entry, version and sha256), or None."""
        reply = self.client.xread({self._key("policies"): after}, block=max(1, int(block_seconds * 1000)))
        if not reply:
            return None
        entry, fields = _streams(reply)[0][1][-1]
        return entry.decode(), int(fields[b"version"]), fields[b"sha256"].decode()

    # For whoever watches

    def dead_letters(self) -> list[tuple[Ticket, str]]:
        entries = self.client.xrange(self._key("dead"))
        return [(_ticket(fields[b"t"]), fields[b"error"].decode()) for _, fields in entries]

    def waiting(self) -> int:
        """Tickets not done yet, claimed or not."""
        return sum(int(self.client.xlen(stream)) for stream in self._both)

    def depth(self) -> Depth:
        """How much there is to do, and for how long."""
        key = self._key("tickets")
        try:
            claimed = int(self.client.xpending(key, GROUP)["pending"])
        except redis.ResponseError:  # no rollout has come yet: nobody holds a ticket
            claimed = 0
        first = self.client.xrange(key, count=1)
        seconds, microseconds = self.client.time()
        age = seconds + microseconds / 1e6 - int(first[0][0].split(b"-")[0]) / 1e3 if first else 0.0
        return Depth(
            waiting=max(0, self.waiting() - claimed),
            claimed=claimed,
            oldest_seconds=max(0.0, age),
            dead=int(self.client.xlen(self._key("dead"))),
        )


def _streams(reply: Any) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """XREAD's reply by position: a list of pairs in RESP2, a mapping of lists of lists in RESP3."""
    if isinstance(reply, dict):
        return [(name, parts[0] if parts and isinstance(parts[0], list) else parts) for name, parts in reply.items()]
    return list(reply)


def _ticket(raw: bytes) -> Ticket:
    return convert.ticket_from_message(queue_pb2.Ticket.FromString(raw))


def _claim(entry: bytes, fields: dict[bytes, bytes]) -> Claim:
    return Claim(entry.decode(), _ticket(fields[b"t"]))
