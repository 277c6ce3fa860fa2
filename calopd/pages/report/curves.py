"""The curves of a run: one figure per chart of the table of metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from calopd.core import step_metrics
from calopd.core.paper_results import CAL_OPD, SMALL, paper_arm
from calopd.core.step_metrics import Chart, Metric
from calopd.pages.charts import (
    STEP_HEIGHT,
    bar_trace,
    fix_range,
    line_trace,
    series_colour,
    step_layout,
    whole_ticks,
)
from calopd.pages.document import figure_html

Rows = Sequence[Mapping[str, Any]]
"""Lines of metrics.jsonl."""

PAPER_LABEL = "the paper, Qwen3-4B → 1.7B"


@dataclass(frozen=True, slots=True)
class Series:
    key: str
    """Key in metrics.jsonl."""
    label: str


def measured_series(metrics: Sequence[Metric], rows: Rows) -> list[Series]:
    """The curves of a chart: metrics with at least one value, those of a probe once per probe."""
    keys = dict.fromkeys(key for row in rows for key, value in row.items() if value is not None)
    return [
        Series(key, label or metric.chart.title.lower())
        for metric in metrics
        for label, key in metric.keys_in(keys).items()
    ]


def figure(chart: Chart, metrics: Sequence[Metric], rows: Rows, *, paper: bool) -> dict[str, Any] | None:
    """The chart as a plotly.js figure {data, layout}; None if nothing was measured. `meta` of a curve is its key."""
    series = measured_series(metrics, rows)
    if not series:
        return None
    steps = [shown_step(row) for row in rows]
    traces = []
    for number, one in enumerate(series):
        colour = series_colour(number)
        look = bar_trace(colour) if chart.stacked else line_trace(colour, single=len(rows) == 1)
        values = steps if one.key == "step" else [row.get(one.key) for row in rows]
        traces.append({"x": steps, "y": values, "name": escape(one.label), "meta": one.key} | look)
    layout = step_layout(metrics[0].unit, legend=len(series) > 1, logarithmic=chart.logarithmic)
    layout["xaxis"] |= whole_ticks(steps[0], steps[-1])
    known = [row[one.key] for one in series for row in rows if row.get(one.key) is not None]
    if not chart.stacked:
        fix_range(layout, metrics[0].unit, known, logarithmic=chart.logarithmic)
    if chart.paper and paper:
        layout |= _paper_band(*chart.paper)
        layout["margin"]["t"] = 24
    return {"data": traces, "layout": layout}


def shown_step(row: Mapping[str, Any]) -> int:
    """The number of a step on pages: the first is 1, as in the terminal, and policy k is the student after step k."""
    return int(row["step"]) + 1


def without_region(note: str) -> str:
    """The text of a chart for a method without a region: nothing is said of one."""
    return f"{note.partition(':')[0]}." if "region" in note else note


def _paper_band(first: float, last: float) -> dict[str, Any]:
    """A faint band over the range of the paper's run; the label is above the plot, clear of the curve."""
    low, high = sorted((first, last))
    band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": low, "y1": high, "layer": "below"}
    place = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": 1, "yanchor": "bottom"}
    text = f"grey band: {first:.0%} → {last:.0%} ({PAPER_LABEL})"
    return {
        "shapes": [band | {"fillcolor": "--band", "line": {"width": 0}}],
        "annotations": [place | {"text": text, "showarrow": False, "font": {"size": 11, "color": "--soft"}}],
    }


def is_papers(config: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a run has the settings of the run that the paper's ranges are of."""
    return paper_arm(config) == (SMALL, CAL_OPD)


def render_curves(rows: Rows, config: Mapping[str, Mapping[str, Any]]) -> str:
    """One section per group of charts; charts without a measurement are named in one line at the end."""
    sections, absent = "", []
    probed = any(row.get("region_width") is not None for row in rows)
    for group, charts in step_metrics.charts().items():
        cards = ""
        for chart, metrics in charts.items():
            drawn = figure(chart, metrics, rows, paper=is_papers(config))
            if drawn is None:
                absent.append(chart.title)
            else:
                note = chart.note or f"{metrics[0].meaning}."
                cards += figure_html(chart.title, note if probed else without_region(note), drawn, height=STEP_HEIGHT)
        if cards:
            sections += f'<section><h2>{escape(group)}</h2><div class="charts">{cards}</div></section>\n'
    if absent:
        sections += f'<p class="hint">Not measured in this run: {escape(", ".join(absent))}.</p>\n'
    return sections
