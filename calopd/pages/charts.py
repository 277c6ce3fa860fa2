"""Charts of all pages, as plain plotly.js figures. A colour that starts with `--` is a CSS variable of the page."""

import math
from collections.abc import Sequence
from typing import Any

LIGHT_COLOURS = ("#2f5d8a", "#c47a2c", "#4f8a5b", "#8a5a93", "#a8433a", "#3a8f98", "#7d7136", "#5b6470")
"""Colours of the series by day, for files that stand alone."""
SERIES_COLOURS = tuple(f"--series-{number}" for number, _ in enumerate(LIGHT_COLOURS, 1))

STEP_HEIGHT = 260
"""Pixels of a chart over steps."""

_FORMATS = {"ratio": ("~%", ".1%"), "seconds": ("", ".2f"), "tokens": (",", ",.1f"), "count": (",", ",.6~g")}
"""Unit -> format of the ticks and of the values below the pointer."""
_NAMED = ("nats", "tokens", "seconds", "versions")
"""Units that are written beside the axis."""
COUNTED = ("count", "tokens", "versions")
"""Units whose axes have no ticks at fractions."""
_LEAST_SPAN = {"ratio": 0.05, "nats": 0.01, "tokens": 4.0, "seconds": 0.1, "count": 4.0, "versions": 1.0}
"""Unit -> smallest height of an axis: rounding errors of a constant must not look like a curve."""


def value_range(unit: str, values: Sequence[float], *, logarithmic: bool = False) -> list[float] | None:
    """The range of an axis whose values hardly differ; None = as the values are."""
    least = _LEAST_SPAN.get(unit)
    if logarithmic:
        above = [value for value in values if value > 0]
        if least is None or not above or max(above) >= least:
            return None
        return [math.floor(math.log10(min(above))) - 1, math.log10(least)]  # small values stand low in the chart
    if least is None or not values or max(values) - min(values) >= least:
        return None
    low = (max(values) + min(values) - least) / 2
    # A line at 0 stands above the axis, which would hide it.
    return [low, low + least] if low >= 0 or min(values) < 0 else [-least / 40, least]


def fix_range(layout: dict[str, Any], unit: str, values: Sequence[float], *, logarithmic: bool = False) -> None:
    """Give the axis of values that hardly differ its range."""
    if fixed := value_range(unit, values, logarithmic=logarithmic):
        layout["yaxis"] |= {"range": fixed, "autorange": False}
        if unit in COUNTED:
            layout["yaxis"]["dtick"] = 1


def whole_ticks(first: float, last: float) -> dict[str, Any]:
    """Ticks of an axis that counts: at most about ten, never at a half."""
    span = max(1.0, last - first)
    unit = 10 ** math.floor(math.log10(span / 10)) if span > 10 else 1
    step = next(unit * factor for factor in (1, 2, 5, 10) if span / (unit * factor) <= 10)
    return {"tick0": 0, "dtick": max(1, int(step))}


def series_colour(number: int) -> str:
    return SERIES_COLOURS[number % len(SERIES_COLOURS)]


def base_layout(*, legend: bool) -> dict[str, Any]:
    """The layout that all figures share."""
    axis = {"gridcolor": "--grid", "linecolor": "--line", "zerolinecolor": "--line", "automargin": True}
    return {
        "margin": {"l": 8, "r": 34, "t": 10, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "--soft", "size": 12, "family": "system-ui, -apple-system, 'Segoe UI', sans-serif"},
        "hoverlabel": {"bgcolor": "--card", "bordercolor": "--line", "font": {"color": "--ink"}, "namelength": -1},
        # Beside the plot, where it covers neither the legend nor the text above.
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "--soft", "activecolor": "--ink", "orientation": "v"},
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        "xaxis": dict(axis),
        "yaxis": dict(axis),
    }


def step_layout(unit: str, *, x_title: str = "step", legend: bool = False, logarithmic: bool = False) -> dict[str, Any]:
    """The layout of values over steps or policies."""
    layout = base_layout(legend=legend) | {"barmode": "stack", "bargap": 0.15, "hovermode": "x unified"}
    small = {"size": 12}
    layout["xaxis"] |= {
        "title": {"text": x_title, "standoff": 6, "font": small},
        "zeroline": False,
        "unifiedhovertitle": {"text": f"{x_title} %{{x}}"},
        "tickformat": ",d",
    }
    ticks, hover = _FORMATS.get(unit, ("", ".4~g"))
    layout["yaxis"] |= {
        "tickformat": ticks,
        "hoverformat": hover,
        "rangemode": "normal" if unit in ("nats", "") else "nonnegative",
        "exponentformat": "e" if logarithmic else "power",  # plotly draws powers on a logarithmic axis too large
        "type": "log" if logarithmic else "linear",
        "title": {"text": unit if unit in _NAMED else "", "standoff": 6, "font": small},
    }
    return layout


def line_trace(colour: str, *, single: bool) -> dict[str, Any]:
    """A line; one point alone needs a marker to be seen."""
    return {
        "type": "scatter",
        "mode": "markers" if single else "lines",
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": 7},
    }


def bar_trace(colour: str) -> dict[str, Any]:
    return {"type": "bar", "marker": {"color": colour, "line": {"width": 0}}}
