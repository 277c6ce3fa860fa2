"""The `/metrics` page of a service. One Prometheus may scrape many runs, so every sample has the label `run`."""

from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector


class _OfRun(Collector):
    """All metrics of this process, with the label `run`."""

    def __init__(self, run: str) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        for metric in REGISTRY.collect():
            metric.samples = [sample._replace(labels={**sample.labels, "run": self._run}) for sample in metric.samples]
            yield metric


def metrics_of_run(run: str) -> bytes:
    """The page as Prometheus reads it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfRun(run))
    return generate_latest(registry)
