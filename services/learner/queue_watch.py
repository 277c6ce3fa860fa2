"""What is looked up when Prometheus asks: the queue and the room on the disks."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import redis
from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from redis.backoff import NoBackoff
from redis.retry import Retry

from calopd.transport.redis_queue import Queue

PATIENCE_SECONDS = 2.0


class Watch(Collector):
    def __init__(self, url: str, run: str, folders: Mapping[str, Path]) -> None:
        # A client of its own that does not retry: a page that comes late is worse than one that says "down".
        client = redis.Redis.from_url(
            url,
            socket_timeout=PATIENCE_SECONDS,
            socket_connect_timeout=PATIENCE_SECONDS,
            retry=Retry(NoBackoff(), retries=0),
        )
        self._queue, self._folders = Queue(client, run), folders

    def describe(self) -> list[GaugeMetricFamily]:
        return []  # without it, registering would ask for all of this at once

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily("calopd_learner_queue_up", "1 where Redis answers the learner")
        tickets = GaugeMetricFamily("calopd_learner_queue_tickets", "Tickets not done yet", labels=["state"])
        oldest = GaugeMetricFamily("calopd_learner_queue_oldest_seconds", "Age of the oldest ticket not done yet")
        dead = GaugeMetricFamily("calopd_learner_dead_letters", "Tickets of this run that were set aside")
        try:
            depth = self._queue.depth()
        except redis.RedisError:
            up.add_metric([], 0)
        else:
            up.add_metric([], 1)
            tickets.add_metric(["waiting"], depth.waiting)
            tickets.add_metric(["claimed"], depth.claimed)
            oldest.add_metric([], depth.oldest_seconds)
            dead.add_metric([], depth.dead)
        free = GaugeMetricFamily("calopd_learner_disk_free_bytes", "Room that is left", labels=["volume"])
        size = GaugeMetricFamily("calopd_learner_disk_size_bytes", "Room that there is", labels=["volume"])
        for volume, folder in self._folders.items():
            if folder.exists():
                usage = shutil.disk_usage(folder)
                free.add_metric([volume], usage.free)
                size.add_metric([volume], usage.total)
        yield from (up, tickets, oldest, dead, free, size)


def watch(url: str, run: str, folders: Mapping[str, Path]) -> None:
    REGISTRY.register(Watch(url, run, folders))
