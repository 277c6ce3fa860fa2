"""Surfaces of the queue: entries of the ticket stream, and results."""

import random
from pathlib import Path
from typing import Any, cast

import redis

from calopd.core.errors import InvalidRequest, UnhealthyTeacher
from calopd.core.types import Sampling, Ticket
from calopd.local import embedded_redis
from calopd.transport import convert
from calopd.transport.checksums import with_checksum, without_checksum
from calopd.transport.queue import open_queue
from calopd.transport.redis_base import UNREADABLE
from calopd.transport.result_reader import read_result
from calopd.transport.v1 import queue_pb2
from tests.conftest import Server
from tests.fuzz.mutations import damaged
from tests.fuzz.surface import Surface
from tests.fuzz.wire_surfaces import change_message
from tests.ports import free_port
from tests.transport.test_redis_queue import ticket, trajectory


class QueueEntries(Surface):
    """Entries of the ticket stream that are not ours: no worker may fail on one, and none may stay."""

    name, share = "queue entries", 2

    def __init__(self, server: Server) -> None:
        self._queue: Any = open_queue(server.url, "fuzz")
        self._queue.join()
        self._client: Any = redis.Redis.from_url(server.url)
        ticket = Ticket("fuzz", "step-000000", 0, "p0-1", 0, 1, 0, Sampling(1.0, 1.0, 8), contexts=("c0",))
        self._queue.open_batch("step-000000", [ticket])
        ((_, fields),) = self._client.xrange("calopd:fuzz:tickets")
        self._fields: dict[bytes, bytes] = dict(cast(Any, fields))
        self._ticket = without_checksum(self._fields[b"t"])
        self._client.xtrim("calopd:fuzz:tickets", maxlen=0)

    def try_one(self, draw: random.Random) -> str:
        fields: dict[bytes, bytes] = {
            key if draw.random() < 0.9 else draw.randbytes(3): damaged(value, draw) if draw.random() < 0.8 else value
            for key, value in self._fields.items()
        }
        if draw.random() < 0.6:  # past the checksum
            fields[b"t"] = with_checksum(damaged(self._ticket, draw))
        entry = self._client.xadd("calopd:fuzz:tickets", fields)
        claims = self._queue.claim("worker", 10, 0.001)
        if not claims:
            left = self._client.xpending_range("calopd:fuzz:tickets", "rollout", entry, entry, 1)
            assert not left, f"the malformed entry {fields} stays claimed"
            return "dead-lettered"
        for claim in claims:
            self._queue.dead_letter(claim, "fuzzed")
        return "a ticket"

    def close(self) -> None:
        assert not self._client.xpending("calopd:fuzz:tickets", "rollout")["pending"]


class Trajectories(Surface):
    """Results as the learner reads them; the queue handles those that cannot be decoded."""

    name, share = "trajectories", 2

    def __init__(self) -> None:
        self._valid = convert.trajectory_to_bytes(trajectory(ticket(0)))

    def try_one(self, draw: random.Random) -> str:
        if draw.random() < 0.6:
            message = queue_pb2.Trajectory.FromString(self._valid)
            change_message(message, draw)
            raw = message.SerializeToString()
        else:
            raw = damaged(self._valid, draw)
        try:
            read_result(raw)
        except (*UNREADABLE, InvalidRequest, UnhealthyTeacher):  # what `Queue.results` takes for a lost result
            return "refused"
        return "accepted"

    def close(self) -> None:
        read_result(self._valid)


def redis_server(folder: Path) -> Server:
    port = free_port()
    return Server(embedded_redis.server_command(folder, port, "x"), embedded_redis.server_url(port, "x"))
