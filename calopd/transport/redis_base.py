"""The common part of both sides of the queue in Redis: the connection, the keys of a run and its scripts."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import redis
from google.protobuf.message import DecodeError

from calopd.core.errors import LearnerReplaced, QueueLoginRefused, QueueUnavailable
from calopd.core.types import EVALUATION, Ticket
from calopd.transport import convert, redis_scripts
from calopd.transport.checksums import with_checksum, without_checksum
from calopd.transport.queue import Queue
from calopd.transport.v1 import queue_pb2

log = logging.getLogger(__name__)

GROUP = "rollout"
Fields = dict[bytes, bytes]
T = TypeVar("T")


class RedisBase(Queue):
    """The connection, the keys and the scripts of a run."""

    def __init__(self, client: "redis.Redis", run: str) -> None:
        # redis-py types every reply as a union of sync and async; the replies are checked by the tests instead.
        self.client: Any = client
        self.run = run
        self._epoch = 0
        """Of this learner; 0 = a worker, or a learner that has not taken the lead."""
        names = ("LEAD", "SEEN", "OPEN", "CLOSE", "REISSUE", "ANNOUNCE", "COMMIT", "ATTEMPT", "GIVE_BACK", "SET_ASIDE")
        self._scripts = {name: client.register_script(getattr(redis_scripts, name)) for name in names}

    def _run(self, script: str, keys: Sequence[str], *args: bytes | str | int) -> Any:
        try:
            return self._scripts[script](keys=keys, args=args)
        except redis.ResponseError as error:
            if redis_scripts.REPLACED in str(error):
                raise LearnerReplaced(
                    f"another learner works on the run {self.run}: this one stops, two would undo each other's steps"
                ) from None
            raise

    def _read(self, stream: str, entries: Iterable[tuple[bytes, Fields]], read: Callable[[str, Fields], T]) -> list[T]:
        """Entries as `read` returns them. One that it cannot read is removed and stored apart: it must stop nobody."""
        found = []
        for entry, fields in entries:
            if not fields:  # deleted since it was claimed
                continue
            try:
                found.append(read(entry.decode(), fields))
            except UNREADABLE as error:
                log.error("entry %s of %s cannot be read and was removed: %r", entry.decode(), stream, error)
                self._run("SET_ASIDE", [stream, self._key("malformed")], GROUP, entry, repr(fields), repr(error))
        return found

    def _key(self, *parts: str) -> str:
        return ":".join(("calopd", self.run, *parts))

    def _stream(self, batch: str) -> str:
        return self._key("evaluations" if batch.startswith(EVALUATION) else "tickets")

    def _batch_keys(self, batch: str) -> list[str]:
        parts = [self._key(name, batch) for name in ("results", "arrivals")]
        rest = [self._key("attempts", batch), self._key("learner"), self._key("dead")]
        return [self._key("batches"), *parts, self._stream(batch), *rest]

    @property
    def _both(self) -> tuple[str, str]:
        return self._key("tickets"), self._key("evaluations")

    def ping(self) -> None:
        with unavailable_errors():
            self.client.ping()

    def pin(self, name: str, value: bytes) -> bytes:
        if (found := self.pinned(name)) is not None:  # also a server without memory can tell
            return found
        self.client.hsetnx(self._key("pins"), name, value)
        return bytes(self.client.hget(self._key("pins"), name))

    def pinned(self, name: str) -> bytes | None:
        found = self.client.hget(self._key("pins"), name)
        return None if found is None else bytes(found)


@contextmanager
def unavailable_errors() -> Iterator[None]:
    try:
        yield
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        raise QueueLoginRefused(f"Redis refuses the login: {error}") from None
    except redis.RedisError as error:
        raise QueueUnavailable(f"Redis does not answer: {error}") from None


def stream_entries(reply: Any) -> list[tuple[bytes, list[tuple[bytes, Fields]]]]:
    """Return XREAD's reply as pairs: it is a list of pairs in RESP2 and a mapping of lists of lists in RESP3."""
    if isinstance(reply, dict):
        return [(name, parts[0] if parts and isinstance(parts[0], list) else parts) for name, parts in reply.items()]
    return list(reply)


UNREADABLE = (DecodeError, KeyError, ValueError)
"""Errors of what reads an entry."""


def ticket_of(fields: Fields) -> Ticket:
    """The ticket of an entry, which has its batch beside it."""
    ticket = convert.ticket_from_message(queue_pb2.Ticket.FromString(without_checksum(fields[b"t"])))
    batch = fields[b"b"].decode()
    if not batch or ticket.batch != batch:
        raise ValueError(f"a ticket of batch {ticket.batch!r}, expected {batch!r}")
    if not ticket.is_evaluation and ticket.step < 0:  # ValueError, too, if it has no number
        raise ValueError(f"a ticket of step {ticket.step}")
    return ticket


def ticket_bytes(ticket: Ticket) -> bytes:
    return with_checksum(convert.ticket_to_message(ticket).SerializeToString(deterministic=True))
