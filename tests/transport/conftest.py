import pytest

from calopd.transport.queue import Queue, open_queue
from tests.conftest import Server


@pytest.fixture
def queue(redis_server: Server) -> Queue:
    """A queue that a worker has joined."""
    queue = open_queue(redis_server.url, "r")
    queue.join()
    return queue
