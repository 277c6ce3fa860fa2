"""Logs of a service: one line format, kept by the launcher in one file a process. Metrics say which run they are of."""

import logging
import sys
from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector


def setup_logging(service: str) -> None:
    """Lines `time level service module: message` on stderr."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)-7s {service} %(name)s: %(message)s",
        force=True,
    )
    for noisy in ("httpx", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _OfRun(Collector):
    """All metrics of this process, with the label `run`."""

    def __init__(self, run: str) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        for metric in REGISTRY.collect():
            metric.samples = [sample._replace(labels={**sample.labels, "run": self._run}) for sample in metric.samples]
            yield metric


def metrics_of_run(run: str) -> bytes:
    """What `/metrics` answers: one Prometheus may watch many runs."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfRun(run))
    return generate_latest(registry)
