"""Prometheus: gauges of the last step, derived from the table of metrics, and counters over all steps."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from calopd.core import step_metrics
from calopd.tracking.tracker import Line, TrackedRun, Tracker, measured

tokens = Counter("calopd_learner_tokens", "Response tokens of all steps")
trajectories = Counter("calopd_learner_trajectories", "Trajectories used in all steps")
missing = Counter("calopd_learner_missing_trajectories", "Tickets of all steps that became dead letters")


class LastStep(Collector):
    """One gauge per metric of the table. A metric that was not measured is absent, not 0."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        """Key in metrics.jsonl -> value."""

    def update(self, **values: float) -> None:
        """Show what became known between two steps."""
        self.values = self.values | values

    def collect(self) -> Iterator[GaugeMetricFamily]:
        values = self.values  # one step, even if the next one ends meanwhile
        for metric in step_metrics.METRICS:
            yield from _gauge(metric, values)


def _gauge(metric: step_metrics.Metric, values: dict[str, float]) -> Iterator[GaugeMetricFamily]:
    keys = metric.keys_in(values)
    if keys:
        family = GaugeMetricFamily(metric.prometheus, metric.meaning, labels=["probe"] if metric.per_probe else [])
        for label, key in keys.items():
            family.add_metric([label] if metric.per_probe else [], values[key])
        yield family


last_step = LastStep()
REGISTRY.register(last_step)


class PrometheusTracker(Tracker):
    def __init__(self, run: TrackedRun) -> None:
        # Progress is the policy version over the steps wanted: known before the first step ends.
        last_step.values = {"policy_version": run.first_step}
        if run.first_step:
            last_step.update(step=run.first_step - 1)

    def record(self, line: Line) -> None:
        values: dict[str, Any] = measured(line)
        last_step.values = values
        tokens.inc(values["tokens"])
        trajectories.inc(values["tickets_used"])
        missing.inc(values["tickets_missing"])

    def close(self) -> None:
        """The last step stays visible until the process ends."""
