"""A line figure as SVG, drawn without a browser, so that every figure of an experiment is also a file for a paper."""

import math
from collections.abc import Iterable, Sequence
from html import escape

from calopd.pages.charts import LIGHT_COLOURS, value_range
from calopd.pages.figures.line_figure import BAND_OPACITY, Line, LineFigure, Mark

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 46
LEGEND_ROW = 17
TICKS = 6
NEUTRAL = "#626a73"
"""Colour of a mark without a line."""
DOTTED = ' stroke-dasharray="2 3"'


class _Axis:
    """Maps values to pixels, linearly or by their logarithms."""

    def __init__(self, values: Iterable[float], start: float, end: float, *, logarithmic: bool) -> None:
        known = [value for value in values if not logarithmic or value > 0]
        low, high = min(known, default=0.0), max(known, default=1.0)
        self.logarithmic = logarithmic
        if low == high:
            margin = abs(low) / 10 + 1e-9
            low, high = (low / 2, high * 2) if logarithmic else (low - margin, high + margin)
        self._low, self._high, self._start, self._end = self._scaled(low), self._scaled(high), start, end

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value

    def place(self, value: float) -> float:
        share = (self._scaled(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            powers = range(math.floor(self._low), math.ceil(self._high) + 1)
            found = [base * 10.0**power for power in powers for base in (1, 2, 5)]
            return [t for t in found if self._low - 1e-9 <= math.log10(t) <= self._high + 1e-9]
        raw = (self._high - self._low) / TICKS
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * base for base in (1, 2, 5, 10) if power * base >= raw)
        first = math.ceil(self._low / step - 1e-9)
        return [step * n for n in range(first, math.floor(self._high / step + 1e-9) + 1)]


def svg(figure: LineFigure) -> str:
    """The whole file."""
    height = HEIGHT + LEGEND_ROW * math.ceil((len(figure.lines) + len(figure.marks)) / 2)
    x = _Axis(
        [v for line in figure.lines for v in line.x] + [m.x for m in figure.marks if m.x is not None],
        LEFT, WIDTH - RIGHT, logarithmic=figure.logarithmic_x,
    )  # fmt: skip
    y = _Axis(_heights(figure), HEIGHT - BOTTOM, TOP, logarithmic=figure.logarithmic_y)
    parts = [_text(LEFT, 20, figure.title, size=15, weight=600), *_grid(figure, x, y)]
    for number, line in enumerate(figure.lines):
        colour = _colour(number)
        parts += [*_band(figure.band(line), x, y, colour), *_line(line, x, y, colour)]
    for mark in figure.marks:
        at, place = y.place(mark.y), None if mark.x is None else x.place(mark.x)
        outline = f"M{LEFT} {at:.1f}H{WIDTH - RIGHT}" if place is None else _diamond(place, at)
        parts.append(f'<path d="{outline}" {_look(figure, mark)}/>')
    parts += _legend(figure)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" fill="#1d2126"><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _colour(number: int | None) -> str:
    """The colour of a line by its number."""
    return NEUTRAL if number is None else LIGHT_COLOURS[number % len(LIGHT_COLOURS)]


def _look(figure: LineFigure, mark: Mark) -> str:
    """Attributes of a mark: the colour of its line, dotted if it is a line itself."""
    dash = DOTTED if mark.x is None else ""
    return f'stroke="{_colour(figure.line_of(mark))}" stroke-width="1.5"{dash} fill="none"'


def _diamond(x: float, y: float) -> str:
    return f"M{x:.1f} {y - 5:.1f}l5 5-5 5-5-5z"


def _heights(figure: LineFigure) -> list[float]:
    """The values of the vertical axis, and its ends if they are fixed."""
    fixed = value_range(figure.unit, figure.heights, logarithmic=figure.logarithmic_y) or []
    return figure.heights + [10.0**end if figure.logarithmic_y else end for end in fixed]


def _grid(figure: LineFigure, x: _Axis, y: _Axis) -> list[str]:
    parts = []
    for tick in y.ticks():
        at = y.place(tick)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#e4e5e2"/>')
        parts.append(_text(LEFT - 6, at + 4, _number(tick, figure.unit), anchor="end"))
    for tick in x.ticks():
        if figure.x_title == "step" and tick != round(tick):
            continue
        at = x.place(tick)
        parts.append(f'<path d="M{at:.1f} {HEIGHT - BOTTOM}v5" stroke="#9aa2aa"/>')
        parts.append(_text(at, HEIGHT - BOTTOM + 18, _number(tick, ""), anchor="middle"))
    parts.append(f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="#9aa2aa" fill="none"/>')
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, figure.x_title, anchor="middle"))
    return parts


def _band(bounds: Sequence[tuple[float, float, float]], x: _Axis, y: _Axis, colour: str) -> list[str]:
    if not bounds:
        return []
    outline = [(a, high) for a, _, high in bounds] + [(a, low) for a, low, _ in reversed(bounds)]
    places = " ".join(f"{x.place(a):.1f},{y.place(b):.1f}" for a, b in outline)
    return [f'<polygon points="{places}" fill="{colour}" opacity="{BAND_OPACITY}"/>']


def _line(line: Line, x: _Axis, y: _Axis, colour: str) -> list[str]:
    parts = []
    known = [(a, b) for a, b in zip(line.x, line.y, strict=True) if b is not None and (b > 0 or not y.logarithmic)]
    points = [(x.place(a), y.place(b)) for a, b in known]
    if len(points) > 1:
        places = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{places}" stroke="{colour}" stroke-width="2" fill="none"/>')
    if len(points) <= TICKS + 2:
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
    return parts


def _legend(figure: LineFigure) -> list[str]:
    """Every line and mark as it is drawn, in two columns."""
    parts = []
    entries: list[Line | Mark] = [*figure.lines, *figure.marks]
    for number, entry in enumerate(entries):
        left, top = LEFT + (number % 2) * (WIDTH - LEFT) / 2, HEIGHT + LEGEND_ROW * (number // 2)
        outline, look = f"M{left:.0f} {top - 4}h18", f'stroke="{_colour(number)}" stroke-width="2"'
        if isinstance(entry, Mark):
            outline = outline if entry.x is None else _diamond(left + 9, top - 4)
            look = _look(figure, entry)
        parts.append(f'<path d="{outline}" {look}/>')
        parts.append(_text(left + 24, top, entry.label))
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, weight: int = 400) -> str:
    look = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'


def _number(value: float, unit: str) -> str:
    return f"{100 * value:g} %" if unit == "ratio" else f"{value:,.10g}" if abs(value) >= 1_000 else f"{value:.6g}"
