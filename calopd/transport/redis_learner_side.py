"""The learner's side of the queue in Redis."""

import hashlib
import logging
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from calopd.core.errors import ConfigError, InvalidRequest, ResultsLost, UnhealthyTeacher
from calopd.core.types import Ticket, Trajectory
from calopd.transport.checksums import without_checksum
from calopd.transport.queue import Arrival, arrived_indices
from calopd.transport.redis_base import GROUP, UNREADABLE, Fields, RedisBase, stream_entries, ticket_bytes, ticket_of
from calopd.transport.result_reader import read_result

log = logging.getLogger(__name__)

SILENT_SECONDS = 15.0
"""Another learner that has not been seen for this long is replaced."""


class LearnerSide(RedisBase):
    """Batches, policies and dead letters, as the learner changes them."""

    def lead(self, owner: str, wait_seconds: float = 60.0) -> int:
        deadline, seen, since = time.monotonic() + wait_seconds, None, time.monotonic()
        while True:
            now = time.monotonic()
            # By this clock too: that of the server may have been set back.
            silent = now - since > SILENT_SECONDS
            args = owner, int(time.time() * 1000), int(SILENT_SECONDS * 1000), int(silent)
            if epoch := int(self._run("LEAD", [self._key("learner")], *args)):
                self._epoch = epoch
                return epoch
            newest = self.client.hget(self._key("learner"), "seen")
            if newest != seen:
                seen, since = newest, now
            if now > deadline:
                raise ConfigError(f"another learner works on the run {self.run}: two would undo each other's steps")
            time.sleep(0.5)

    def stay_leader(self) -> None:
        self._run("SEEN", [self._key("learner")], self._epoch)

    def open_batch(self, batch: str, tickets: Iterable[Ticket]) -> bool:
        wanted = [replace(ticket, epoch=0) for ticket in tickets]
        digest = hashlib.sha256(b"".join(ticket_bytes(ticket) for ticket in wanted)).hexdigest()
        payloads = [ticket_bytes(replace(ticket, epoch=self._epoch)) for ticket in wanted]
        return bool(self._run("OPEN", self._batch_keys(batch), self._epoch, batch, GROUP, digest, *payloads))

    def reissue(self, batch: str, tickets: Sequence[Ticket]) -> int:
        state = self.client.hget(self._key("batches"), batch)
        if state is None or not tickets:
            return 0
        epoch = int(state.split()[1])
        pairs = [part for t in tickets for part in (t.index, ticket_bytes(replace(t, epoch=epoch)))]
        return int(self._run("REISSUE", self._batch_keys(batch), self._epoch, batch, state, *pairs))

    def withdraw_results(self, batch: str, indices: Sequence[int]) -> None:
        if state := self.client.hget(self._key("batches"), batch):
            pairs = [part for index in indices for part in (index, b"")]
            self._run("REISSUE", self._batch_keys(batch), self._epoch, batch, state, *pairs)

    def reissue_lost(self, batch: str, tickets: Sequence[Ticket]) -> int:
        # In this order: a ticket that is completed in between is among the results, and its arrival is there, too.
        stream = self._stream(batch)
        entries = self._read(stream, self.client.xrange(stream), lambda _, fields: ticket_of(fields))
        waiting = {ticket.index for ticket in entries if ticket.batch == batch}
        done = {int(index) for index in self.client.hkeys(self._key("results", batch))}
        done &= arrived_indices(self.arrivals(batch, block_seconds=0.0))  # nobody learns of the others
        return self.reissue(batch, [ticket for ticket in tickets if ticket.index not in waiting | done])

    def retry_dead_letters(self, ids: Collection[str] | None = None) -> list[Ticket]:
        by_batch: dict[str, dict[int, Ticket]] = {}
        for ticket, _ in self.dead_letters():
            if ids is None or ticket.id in ids:
                by_batch.setdefault(ticket.batch, {})[ticket.index] = ticket
        issued = []
        for batch, tickets in by_batch.items():
            dead = dict(zip(tickets, self.client.hmget(self._key("results", batch), list(tickets)), strict=True))
            again = [ticket for index, ticket in tickets.items() if dead[index] == b""]
            issued += again if self.reissue(batch, again) else []
        if ids is None:
            self._withdraw_unreadable_dead_letters()
        return issued

    def _withdraw_unreadable_dead_letters(self) -> None:
        """A dead letter that cannot be read is of a ticket that nobody could issue again."""
        readable = {(ticket.batch, ticket.index) for ticket, _ in self.dead_letters()}
        for batch in self.open_batches():
            newest = {arrival.index: arrival for arrival in self.arrivals(batch, block_seconds=0.0)}
            dead = [index for index, arrival in newest.items() if arrival.tokens == 0]
            if unreadable := [index for index in dead if (batch, index) not in readable]:
                self.withdraw_results(batch, unreadable)

    def arrivals(self, batch: str, after: str = "0-0", block_seconds: float = 1.0) -> list[Arrival]:
        stream = self._key("arrivals", batch)
        reply = self.client.xread({stream: after}, block=max(1, int(block_seconds * 1000)))
        return self._read(stream, stream_entries(reply)[0][1] if reply else [], _arrival)

    def results(self, batch: str, indices: Sequence[int]) -> list[Trajectory]:
        if not indices:
            return []
        payloads = self.client.hmget(self._key("results", batch), [str(i) for i in indices])
        found, lost = [], []
        for index, payload in zip(indices, payloads, strict=True):
            try:
                found.append(read_result(without_checksum(payload or b"")))
                if found[-1].ticket.batch != batch or found[-1].ticket.index != index:
                    lost.append(index)
            except (*UNREADABLE, InvalidRequest, UnhealthyTeacher) as error:
                log.error("the result %d of %s is refused: %s", index, batch, error)
                lost.append(index)
        if lost:
            raise ResultsLost(batch, lost)
        return found

    def release_batch(self, batch: str) -> None:
        self._run("CLOSE", self._batch_keys(batch), self._epoch, batch, GROUP)

    def open_batches(self) -> list[str]:
        return sorted(name.decode() for name in self.client.hkeys(self._key("batches")))

    def announce_policy(self, version: int, sha256: str) -> None:
        self._run("ANNOUNCE", [self._key("learner"), self._key("policies")], self._epoch, version, sha256)

    def requested_policies(self) -> set[int]:
        return {int(version) for version in self.client.spop(self._key("policy_requests"), 1_000)}

    def dead_letters(self) -> list[tuple[Ticket, str]]:
        stream = self._key("dead")
        return self._read(stream, self.client.xrange(stream), _dead_letter)


def _dead_letter(_: str, fields: Fields) -> tuple[Ticket, str]:
    return ticket_of(fields), fields[b"error"].decode()


def _arrival(entry: str, fields: Fields) -> Arrival:
    sha256 = fields.get(b"s", b"").decode()
    return Arrival(entry, int(fields[b"i"]), int(fields[b"n"]), int(fields.get(b"v", 0)), sha256)
