"""Charts of all pages, as plain plotly.js figures. A colour that starts with `--` is a CSS variable of the page."""

from typing import Any

SERIES_COLOURS = ("--series-1", "--series-2", "--series-3", "--series-4")

STEP_HEIGHT = 260
"""Pixels of a chart over steps."""

_FORMATS = {"ratio": ("~%", ".1%"), "seconds": ("", ".2f"), "tokens": (",", ",.1f"), "count": (",", ",.6~g")}
"""Unit -> format of the ticks and of the values below the pointer."""
_NAMED = ("nats", "tokens", "seconds", "versions")
"""Units that are written beside the axis."""


def series_colour(number: int) -> str:
    return SERIES_COLOURS[number % len(SERIES_COLOURS)]


def base_layout(*, legend: bool) -> dict[str, Any]:
    """The layout that all figures share."""
    axis = {"gridcolor": "--grid", "linecolor": "--line", "zerolinecolor": "--line", "automargin": True}
    return {
        "margin": {"l": 8, "r": 12, "t": 10, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "--soft", "size": 12, "family": "system-ui, -apple-system, 'Segoe UI', sans-serif"},
        "hoverlabel": {"bgcolor": "--card", "bordercolor": "--line", "font": {"color": "--ink"}, "namelength": -1},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "--soft", "activecolor": "--ink"},
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
        "exponentformat": "power",
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
