"""Calibration: one panel per chart of the table of metrics, and the paper's curves as bands."""

from collections.abc import Sequence

from calopd.core import step_metrics
from calopd.core.step_metrics import ENTROPY, LENGTH, OVERLAP, RETAINED, Chart, Metric
from deploy.monitoring.grafana.panel import BAND, PROGRESS, RUN, Panel, Row, band

UNITS = {"ratio": "percentunit", "seconds": "s"}
"""Unit of a metric -> unit in Grafana; "short" for all others."""

PAPER = {
    RETAINED: "Hardly calibrated with inst: about 0.7. Collapsed with sol: about 0.2.",
    LENGTH: "The paper (4B -> 1.7B): OPD grows from 9.8 K to 11.8 K, Cal-OPD falls to 8.5 K and ends at 9.3 K.",
    ENTROPY: "The paper: about 0.20 with OPD and inst, 0.36 with a collapsed signal (sol), Cal-OPD with eval between.",
    OVERLAP: "The paper: tokens up to 0.693 with eval, 0.684 with inst; mass 0.886 with OPD and inst, 0.862 with sol.",
}
"""Figures of the paper, for orientation."""


def calibration() -> tuple[Row, ...]:
    """The rows of the dashboard."""
    progress = Panel("Done", "Optimizer steps done, of all.", {"{{run}}": PROGRESS}, unit="percentunit", kind="gauge")
    rows = [
        Row(group, tuple(_panel(chart, metrics) for chart, metrics in charts.items()))
        for group, charts in step_metrics.charts().items()
    ]
    return (*rows, Row("Run", (progress,)))


def _panel(chart: Chart, metrics: Sequence[Metric]) -> Panel:
    description = chart.note or f"{metrics[0].meaning}."
    targets = {_legend(metric): f"{metric.prometheus}{{{RUN}}}" for metric in metrics}
    if chart.paper:
        first, last = chart.paper
        targets |= band(first, last)
        description += f" The paper's Cal-OPD run (eval, λ = 5): {first:g} to {last:g}; the band is +- 0.05."
    return Panel(
        chart.title,
        f"{description} {PAPER.get(chart, '')}".strip(),
        targets,
        unit=UNITS.get(metrics[0].unit, "short"),
        width=12 if chart.paper else 8,
        stacked=chart.stacked,
        logarithmic=chart.logarithmic,
        band=BAND if chart.paper else None,
        runbook=chart.runbook,
    )


def _legend(metric: Metric) -> str:
    """The run, then the probe or the metric's name in a chart with several."""
    return " ".join(part for part in ("{{run}}", "{{probe}}" if metric.per_probe else metric.label) if part)
