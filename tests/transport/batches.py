"""The first batch of a run, and what has arrived of it."""

from calopd.transport.queue import Queue, arrived_indices

BATCH = "step-000000"


def arrived(queue: Queue) -> set[int]:
    return arrived_indices(queue.arrivals(BATCH, block_seconds=0.001))
