"""A figure of lines with bands and reference marks, independent of how it is drawn; and its plotly.js form."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from calopd.core.statistics import spread
from calopd.pages.charts import fix_range, line_trace, series_colour, step_layout, whole_ticks

BAND_OPACITY = 0.18
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    x: Sequence[float]
    y: Values
    """None is a gap."""
    low: Values = ()
    high: Values = ()
    """Bounds of the band; empty = no band."""

    @classmethod
    def over_seeds(cls, label: str, x: Sequence[float], values: Sequence[Sequence[float]]) -> "Line":
        """The means of the values at each x, in a band of one standard deviation where there are several."""
        spreads = [spread(each) for each in values]
        if all(one.deviation is None for one in spreads):
            return cls(label, x, [one.mean for one in spreads])
        low = [None if one.deviation is None else one.mean - one.deviation for one in spreads]
        high = [None if one.deviation is None else one.mean + one.deviation for one in spreads]
        return cls(label, x, [one.mean for one in spreads], low, high)


@dataclass(frozen=True, slots=True)
class Mark:
    """A reference value: a dotted horizontal line, or a point if it has an x."""

    label: str
    y: float
    x: float | None = None
    line: str = ""
    """Label of the line that it is the reference of, whose colour it has; empty = none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFigure:
    key: str
    """Name of the exported files."""
    title: str
    note: str
    unit: str
    """A unit of the table of metrics: it decides the format of the axis."""
    x_title: str = "step"
    lines: tuple[Line, ...] = ()
    marks: tuple[Mark, ...] = ()
    logarithmic_x: bool = False
    logarithmic_y: bool = False

    @property
    def heights(self) -> list[float]:
        """All values of the vertical axis: lines, bands and marks."""
        columns = (column for line in self.lines for column in (line.y, line.low, line.high))
        return [value for column in columns for value in column if value is not None] + [mark.y for mark in self.marks]

    def band(self, line: Line) -> list[tuple[float, float, float]]:
        """(x, low, high) of the points with bounds. On a logarithmic axis, a band ends at the lowest value drawn."""
        if not line.low:
            return []
        floor = min((value for value in self.heights if value > 0), default=1.0) if self.logarithmic_y else None
        return [
            (x, low if floor is None else max(low, floor), high if floor is None else max(high, floor))
            for x, low, high in zip(line.x, line.low, line.high, strict=True)
            if low is not None and high is not None
        ]

    def line_of(self, mark: Mark) -> int | None:
        """The number of the line that a mark is the reference of; None if no line of the figure is."""
        return next((number for number, line in enumerate(self.lines) if line.label == mark.line), None)

    def plotly(self) -> dict[str, Any]:
        """The figure as plotly.js draws it."""
        legend = len(self.lines) + len(self.marks) > 1
        layout = step_layout(self.unit, x_title=self.x_title, legend=legend, logarithmic=self.logarithmic_y)
        fix_range(layout, self.unit, self.heights, logarithmic=self.logarithmic_y)
        places = sorted({x for line in self.lines for x in line.x})
        if self.logarithmic_x:
            layout["xaxis"] |= {"type": "log", "tickvals": places, "tickformat": "~g"}
        elif self.x_title == "step" and places:
            layout["xaxis"] |= whole_ticks(places[0], places[-1])
        traces: list[dict[str, Any]] = []
        for number, line in enumerate(self.lines):
            colour = series_colour(number)
            if bounds := self.band(line):
                traces.append(_band(bounds, colour))
            look = line_trace(colour, single=len(line.x) == 1)
            if self.x_title != "step":
                look["mode"] = "lines+markers"
            traces.append({"x": list(line.x), "y": list(line.y), "name": escape(line.label)} | look)
        for mark in self.marks:
            owner = self.line_of(mark)
            traces.append(_mark(mark, self.lines, None if owner is None else series_colour(owner)))
        return {"data": traces, "layout": layout}


def _band(bounds: Sequence[tuple[float, float, float]], colour: str) -> dict[str, Any]:
    """A closed outline: along the upper bound and back along the lower one."""
    return {
        "type": "scatter",
        "x": [x for x, _, _ in bounds] + [x for x, _, _ in reversed(bounds)],
        "y": [high for _, _, high in bounds] + [low for _, low, _ in reversed(bounds)],
        "fill": "toself",
        "fillcolor": colour,
        "opacity": BAND_OPACITY,
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _mark(mark: Mark, lines: Sequence[Line], colour: str | None) -> dict[str, Any]:
    every = [x for line in lines for x in line.x] or [0.0]
    places = [mark.x] if mark.x is not None else [min(every), max(every)]
    point = {"mode": "markers", "marker": {"symbol": "diamond-open", "size": 10, "color": colour or "--ink"}}
    dotted = {"mode": "lines", "line": {"color": colour or "--soft", "width": 1.5, "dash": "dot"}}
    look = point if mark.x is not None else dotted
    return {"type": "scatter", "x": places, "y": [mark.y] * len(places), "name": escape(mark.label)} | look
