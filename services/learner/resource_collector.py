"""Prometheus metrics that are read at every scrape: the state of the queue and free disk space."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from calopd.core.errors import QueueUnavailable
from calopd.transport.queue import open_queue

TIMEOUT_SECONDS = 2.0


class ResourceCollector(Collector):
    def __init__(self, url: str, run: str, folders: Mapping[str, Path]) -> None:
        # A connection of its own without retries: Prometheus must get an answer even if the server is down.
        self._queue = open_queue(url, run, timeout_seconds=TIMEOUT_SECONDS)
        self._folders = folders

    def describe(self) -> list[GaugeMetricFamily]:
        return []  # without this method, registering would call `collect`

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily("calopd_learner_queue_up", "1 if Redis answers the learner, else 0")
        tickets = GaugeMetricFamily("calopd_learner_queue_tickets", "Tickets that are not done", labels=["state"])
        oldest = GaugeMetricFamily("calopd_learner_queue_oldest_seconds", "Age of the oldest ticket that is not done")
        dead = GaugeMetricFamily("calopd_learner_dead_letters", "Tickets of this run in the dead-letter stream")
        try:
            depth = self._queue.depth()
        except QueueUnavailable:
            up.add_metric([], 0)
        else:
            up.add_metric([], 1)
            tickets.add_metric(["waiting"], depth.waiting)
            tickets.add_metric(["claimed"], depth.claimed)
            oldest.add_metric([], depth.oldest_seconds)
            dead.add_metric([], depth.dead)
        free = GaugeMetricFamily("calopd_learner_disk_free_bytes", "Free disk space", labels=["volume"])
        size = GaugeMetricFamily("calopd_learner_disk_size_bytes", "Total disk space", labels=["volume"])
        for volume, folder in self._folders.items():
            if folder.exists():
                usage = shutil.disk_usage(folder)
                free.add_metric([volume], usage.free)
                size.add_metric([volume], usage.total)
        yield from (up, tickets, oldest, dead, free, size)


def register_resource_collector(url: str, run: str, folders: Mapping[str, Path]) -> None:
    REGISTRY.register(ResourceCollector(url, run, folders))
