"""The queue in Redis: streams and hashes, changed by Lua scripts.

Keys of a run (prefix `calopd:<run>:`):
  tickets            stream, consumer group `rollout`: tickets of steps
  evaluations        the same for evaluations, which workers claim only while there is nothing to do for a step
  batches            hash, batch -> open | released
  results:<batch>    hash, ticket index -> trajectory; the first result is kept, '' = a dead letter
  arrivals:<batch>   stream of (index, tokens): rank 0 plans a step without reading trajectories
  policies           stream of published policy versions
  policy_requests    set of policy versions to publish again
  dead               stream of dead letters, each with its error

Each change of state is one Lua script: a process that is killed has made the change entirely or not at all.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

from calopd.core.errors import QueueLoginRefused, QueueUnavailable
from calopd.core.types import EVALUATION, Ticket, Trajectory
from calopd.transport import convert
from calopd.transport.convert import ReceivedScores
from calopd.transport.queue import Announcement, Arrival, Claim, Depth, Queue
from calopd.transport.v1 import queue_pb2

GROUP = "rollout"

_OPEN = """
if redis.call('HGET', KEYS[1], ARGV[1]) == 'open' then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], 'open')
for i = 2, #ARGV do redis.call('XADD', KEYS[2], '*', 't', ARGV[i], 'b', ARGV[1]) end
return 1
"""

# A result counts only while its ticket is in the stream: one that was withdrawn with its batch may have been issued
# again, for other weights of the same policy version.
# Also used for dead letters: the result is the empty string, and the error goes to the dead stream.
_COMMIT = """
local fresh = 0
redis.call('XACK', KEYS[4], ARGV[5], ARGV[6])
if redis.call('XDEL', KEYS[4], ARGV[6]) == 1 and redis.call('HGET', KEYS[1], ARGV[1]) == 'open' then
  fresh = redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[3])
  if fresh == 1 then
    redis.call('XADD', KEYS[3], '*', 'i', ARGV[2], 'n', ARGV[4])
    if ARGV[7] ~= '' then redis.call('XADD', KEYS[5], '*', 't', ARGV[8], 'error', ARGV[7]) end
  end
end
return fresh
"""

# The ticket becomes a new entry of its stream, with no deliveries.
_GIVE_BACK = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
if redis.call('XDEL', KEYS[1], ARGV[2]) == 1 then redis.call('XADD', KEYS[1], '*', 't', ARGV[3], 'b', ARGV[4]) end
return 1
"""

_CLOSE = """
redis.call('HSET', KEYS[1], ARGV[1], 'released')
redis.call('DEL', KEYS[2], KEYS[3])
for _, entry in ipairs(redis.call('XRANGE', KEYS[4], '-', '+')) do
  if entry[2][4] == ARGV[1] then
    redis.call('XACK', KEYS[4], ARGV[2], entry[1])
    redis.call('XDEL', KEYS[4], entry[1])
  end
end
return 1
"""


def open_queue(url: str, run: str, *, timeout_seconds: float | None = None) -> "RedisQueue":
    """Open the queue of a run; see `calopd.transport.queue.open_queue`."""
    if timeout_seconds is not None:
        client = redis.Redis.from_url(
            url,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=Retry(NoBackoff(), retries=0),
        )
    else:
        client = redis.Redis.from_url(
            url,
            retry=Retry(ExponentialBackoff(cap=2.0, base=0.05), retries=8),
            retry_on_error=[redis.ConnectionError, redis.TimeoutError],
            socket_connect_timeout=5,
            health_check_interval=15,
        )
    return RedisQueue(client, run)


class RedisQueue(Queue):
    """The queue of one run in Redis or a server that speaks its protocol."""

    def __init__(self, client: "redis.Redis", run: str) -> None:
        # redis-py types every reply as a union of sync and async; the replies are checked by the tests instead.
        self.client: Any = client
        self.run = run
        self._open = client.register_script(_OPEN)
        self._commit = client.register_script(_COMMIT)
        self._give_back = client.register_script(_GIVE_BACK)
        self._close = client.register_script(_CLOSE)

    def _key(self, *parts: str) -> str:
        return ":".join(("calopd", self.run, *parts))

    def _stream(self, batch: str) -> str:
        return self._key("evaluations" if batch.startswith(EVALUATION) else "tickets")

    @property
    def _both(self) -> tuple[str, str]:
        return self._key("tickets"), self._key("evaluations")

    def ping(self) -> None:
        with _unavailable():
            self.client.ping()

    # The learner's side

    def open_batch(self, batch: str, tickets: Iterable[Ticket]) -> bool:
        payloads = [convert.ticket_to_message(ticket).SerializeToString() for ticket in tickets]
        return bool(self._open(keys=[self._key("batches"), self._stream(batch)], args=[batch, *payloads]))

    def arrivals(self, batch: str, after: str = "0-0", block_seconds: float = 1.0) -> list[Arrival]:
        reply = self.client.xread({self._key("arrivals", batch): after}, block=max(1, int(block_seconds * 1000)))
        entries = _streams(reply)[0][1] if reply else []
        return [Arrival(entry.decode(), int(fields[b"i"]), int(fields[b"n"])) for entry, fields in entries]

    def results(self, batch: str, indices: Sequence[int]) -> list[Trajectory]:
        if not indices:
            return []
        payloads = self.client.hmget(self._key("results", batch), [str(i) for i in indices])
        return [convert.trajectory_from_bytes(payload) for payload in payloads]

    def release_batch(self, batch: str) -> None:
        keys = [self._key("batches"), self._key("results", batch), self._key("arrivals", batch)]
        self._close(keys=[*keys, self._stream(batch)], args=[batch, GROUP])

    def open_batches(self) -> list[str]:
        states = self.client.hgetall(self._key("batches"))
        return sorted(name.decode() for name, state in states.items() if state == b"open")

    def announce_policy(self, version: int, sha256: str) -> None:
        self.client.xadd(self._key("policies"), {"version": version, "sha256": sha256}, maxlen=64)

    def requested_policies(self) -> set[int]:
        return {int(version) for version in self.client.spop(self._key("policy_requests"), 1_000)}

    # The rollout's side

    def request_policy(self, version: int) -> None:
        self.client.sadd(self._key("policy_requests"), version)

    def join(self) -> None:
        for stream in self._both:
            try:
                self.client.xgroup_create(stream, GROUP, id="0", mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    def own_claims(self, worker: str) -> list[Claim]:
        read = self.client.xreadgroup
        return [c for s in self._both for c in self._claims(read(GROUP, worker, {s: "0"}, count=10_000))]

    def claim(self, worker: str, count: int, block_seconds: float = 1.0) -> list[Claim]:
        reply = self.client.xreadgroup(
            GROUP, worker, {self._key("tickets"): ">"}, count=count, block=max(1, int(block_seconds * 1000))
        )
        return self._claims(reply)

    def claim_evaluations(self, worker: str, count: int) -> list[Claim]:
        return self._claims(self.client.xreadgroup(GROUP, worker, {self._key("evaluations"): ">"}, count=count))

    def _claims(self, reply: Any) -> list[Claim]:
        entries = _streams(reply)[0][1] if reply else []
        return [_claim(entry, fields) for entry, fields in entries if fields]

    def claim_abandoned(
        self, worker: str, count: int, idle_seconds: float, *, evaluations: bool = False
    ) -> list[Claim]:
        stream = self._both[evaluations]
        reply = self.client.xautoclaim(stream, GROUP, worker, min_idle_time=int(idle_seconds * 1000), count=count)
        return [_claim(entry, fields) for entry, fields in reply[1] if fields]

    def active_workers(self, idle_seconds: float) -> int:
        workers = self.client.xinfo_consumers(self._key("tickets"), GROUP)
        return max(1, sum(worker["idle"] < idle_seconds * 1000 for worker in workers))

    def renew(self, worker: str, claims: Sequence[Claim]) -> None:
        for stream in self._both:
            entries = [claim.entry for claim in claims if self._stream(claim.ticket.batch) == stream]
            if entries:
                self.client.xclaim(stream, GROUP, worker, min_idle_time=0, message_ids=entries, justid=True)

    def give_back(self, claim: Claim) -> None:
        raw = convert.ticket_to_message(claim.ticket).SerializeToString()
        self._give_back(keys=[self._stream(claim.ticket.batch)], args=[GROUP, claim.entry, raw, claim.ticket.batch])

    def deliveries(self, claim: Claim) -> int:
        stream = self._stream(claim.ticket.batch)
        pending = self.client.xpending_range(stream, GROUP, min=claim.entry, max=claim.entry, count=1)
        return int(pending[0]["times_delivered"]) if pending else 0

    def commit(self, claim: Claim, trajectory: Trajectory, received: ReceivedScores | None = None) -> bool:
        tokens = len(trajectory.prompt_ids) + len(trajectory.sample.response_ids)
        return self._finish(claim, convert.trajectory_to_bytes(trajectory, received), tokens, "")

    def dead_letter(self, claim: Claim, error: str) -> bool:
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

    def wait_for_policy(self, after: str, block_seconds: float) -> Announcement | None:
        reply = self.client.xread({self._key("policies"): after}, block=max(1, int(block_seconds * 1000)))
        if not reply:
            return None
        entry, fields = _streams(reply)[0][1][-1]
        return Announcement(entry.decode(), int(fields[b"version"]), fields[b"sha256"].decode())

    # Monitoring

    def dead_letters(self) -> list[tuple[Ticket, str]]:
        entries = self.client.xrange(self._key("dead"))
        return [(_ticket(fields[b"t"]), fields[b"error"].decode()) for _, fields in entries]

    def waiting(self) -> int:
        """Return the number of unfinished tickets, claimed or not."""
        return sum(int(self.client.xlen(stream)) for stream in self._both)

    def depth(self) -> Depth:
        with _unavailable():
            return self._depth()

    def _depth(self) -> Depth:
        key = self._key("tickets")
        try:
            claimed = int(self.client.xpending(key, GROUP)["pending"])
        except redis.ResponseError:  # no worker has joined yet
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


@contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        raise QueueLoginRefused(f"Redis refuses the login: {error}") from None
    except redis.RedisError as error:
        raise QueueUnavailable(f"Redis does not answer: {error}") from None


def _streams(reply: Any) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """Return XREAD's reply as pairs: it is a list of pairs in RESP2 and a mapping of lists of lists in RESP3."""
    if isinstance(reply, dict):
        return [(name, parts[0] if parts and isinstance(parts[0], list) else parts) for name, parts in reply.items()]
    return list(reply)


def _ticket(raw: bytes) -> Ticket:
    return convert.ticket_from_message(queue_pb2.Ticket.FromString(raw))


def _claim(entry: bytes, fields: dict[bytes, bytes]) -> Claim:
    return Claim(entry.decode(), _ticket(fields[b"t"]))
