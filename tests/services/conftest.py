"""A queue for services that are tested without their processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from calopd.local import embedded_redis
from calopd.transport.queue import Queue, open_queue
from tests.conftest import Server
from tests.ports import free_port


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """The queue of the run `r`, on a server of its own."""
    port = free_port()
    command = embedded_redis.server_command(tmp_path / "redis", port, "secret")
    with Server(command, embedded_redis.server_url(port, "secret")).running() as server:
        queue = open_queue(server.url, "r")
        queue.join()
        yield queue
