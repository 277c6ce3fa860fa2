"""The queue in Redis: streams and hashes, changed by Lua scripts.

Keys of a run (prefix `calopd:<run>:`):
  learner            hash: epoch and owner of the learner, which every change of a learner checks
  pins               hash of values that are stored once: the teacher of the run
  tickets            stream, consumer group `rollout`: tickets of steps
  evaluations        the same for evaluations, which workers claim only while there is nothing to do for a step
  batches            hash, batch -> epoch and fingerprint of its tickets, while it is open
  results:<batch>    hash, ticket index -> trajectory; the first result is kept, '' = a dead letter
  arrivals:<batch>   stream of (index, tokens, policy): rank 0 plans a step without reading trajectories
  attempts:<batch>   hash, ticket index and kind -> attempts that ended without a result
  policies           stream of published policy versions
  policy_requests    set of policy versions to publish again
  dead               stream of dead letters, each with its error
  malformed          stream of entries that could not be read

Each change of state is one Lua script: a process that is killed has made the change entirely or not at all.
Tickets and trajectories have a checksum: what changed on the way through the server's file is issued again.
"""

from collections.abc import Sequence
from typing import Any

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

from calopd.core.types import Trajectory
from calopd.transport import convert
from calopd.transport.checksums import with_checksum
from calopd.transport.convert import ReceivedScores
from calopd.transport.queue import Announcement, Attempt, Claim, Depth
from calopd.transport.redis_base import GROUP, Fields, stream_entries, ticket_bytes, ticket_of, unavailable_errors
from calopd.transport.redis_learner_side import LearnerSide

TIMEOUT_SECONDS = 30.0
"""Time that the server has for an answer. A server that is frozen or cut off is called again, then given up."""


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
            socket_timeout=TIMEOUT_SECONDS,
            health_check_interval=15,
        )
    return RedisQueue(client, run)


class RedisQueue(LearnerSide):
    """The queue of one run in Redis or a server that speaks its protocol: the rollout's side, and the learner's."""

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
        return [c for s in self._both for c in self._claims(s, read(GROUP, worker, {s: "0"}, count=10_000))]

    def claim(self, worker: str, count: int, block_seconds: float = 1.0) -> list[Claim]:
        stream, block = self._key("tickets"), max(1, int(block_seconds * 1000))
        return self._claims(stream, self.client.xreadgroup(GROUP, worker, {stream: ">"}, count=count, block=block))

    def claim_evaluations(self, worker: str, count: int) -> list[Claim]:
        stream = self._key("evaluations")
        return self._claims(stream, self.client.xreadgroup(GROUP, worker, {stream: ">"}, count=count))

    def _claims(self, stream: str, reply: Any) -> list[Claim]:
        return self._read(stream, stream_entries(reply)[0][1] if reply else [], _claim)

    def claim_abandoned(
        self, worker: str, count: int, idle_seconds: float, *, evaluations: bool = False
    ) -> list[Claim]:
        stream = self._both[evaluations]
        reply = self.client.xautoclaim(stream, GROUP, worker, min_idle_time=int(idle_seconds * 1000), count=count)
        return self._read(stream, reply[1], _claim)

    def active_workers(self, idle_seconds: float) -> int:
        workers = self.client.xinfo_consumers(self._key("tickets"), GROUP)
        return max(1, sum(worker["idle"] < idle_seconds * 1000 for worker in workers))

    def renew(self, worker: str, claims: Sequence[Claim]) -> None:
        for stream in self._both:
            entries = [claim.entry for claim in claims if self._stream(claim.ticket.batch) == stream]
            if entries:
                self.client.xclaim(stream, GROUP, worker, min_idle_time=0, message_ids=entries, justid=True)

    def give_back(self, claim: Claim) -> None:
        batch = claim.ticket.batch
        self._run("GIVE_BACK", [self._stream(batch)], GROUP, claim.entry, ticket_bytes(claim.ticket), batch)

    def deliveries(self, claim: Claim) -> int:
        stream = self._stream(claim.ticket.batch)
        pending = self.client.xpending_range(stream, GROUP, min=claim.entry, max=claim.entry, count=1)
        return int(pending[0]["times_delivered"]) if pending else 0

    def count_attempt(self, claim: Claim, kind: Attempt, change: int = 1) -> int:
        batch, field = claim.ticket.batch, f"{claim.ticket.index}:{kind}"
        return int(self._run("ATTEMPT", self._batch_keys(batch), batch, field, change))

    def commit(self, claim: Claim, trajectory: Trajectory, received: ReceivedScores | None = None) -> bool:
        sample = trajectory.sample
        tokens = len(trajectory.prompt_ids) + len(sample.response_ids)
        payload = with_checksum(convert.trajectory_to_bytes(trajectory, received))
        return self._finish(claim, payload, tokens, "", sample.policy_version, sample.policy_sha256)

    def dead_letter(self, claim: Claim, error: str) -> bool:
        return self._finish(claim, b"", 0, error or "no reason given", 0, "")

    def _finish(self, claim: Claim, payload: bytes, tokens: int, error: str, version: int, sha256: str) -> bool:
        ticket = claim.ticket
        done = (ticket.batch, ticket.index, payload, tokens, GROUP, claim.entry)
        args = (*done, error, ticket_bytes(ticket), ticket.epoch, version, sha256)
        return bool(self._run("COMMIT", self._batch_keys(ticket.batch), *args))

    def wait_for_policy(self, after: str, block_seconds: float) -> Announcement | None:
        stream = self._key("policies")
        reply = self.client.xread({stream: after}, block=max(1, int(block_seconds * 1000)))
        found = self._read(stream, stream_entries(reply)[0][1] if reply else [], _announcement)
        return found[-1] if found else None

    # Monitoring

    def waiting(self) -> int:
        """Return the number of unfinished tickets, claimed or not."""
        return sum(int(self.client.xlen(stream)) for stream in self._both)

    def depth(self) -> Depth:
        with unavailable_errors():
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
            dead=sum(int(self.client.xlen(self._key(name))) for name in ("dead", "malformed")),
        )


def _claim(entry: str, fields: Fields) -> Claim:
    return Claim(entry, ticket_of(fields))


def _announcement(entry: str, fields: Fields) -> Announcement:
    return Announcement(entry, int(fields[b"version"]), fields[b"sha256"].decode())
