"""The curves of a run, as plain plotly.js figures. A colour that starts with `--` is a CSS variable of the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from calopd.pages.document import figure_html

Rows = Sequence[dict[str, Any]]

PAPER_LABEL = "paper, Qwen3-4B → 1.7B, for orientation"
SERIES_COLOURS = ("--series-1", "--series-2", "--series-3", "--series-4")
DEVIATION = "deviation_"
PERCENT = ".0%"


@dataclass(frozen=True, slots=True)
class Paper:
    """Where the paper's Cal-OPD run (eval probes, relaxation 5) went over its 100 steps."""

    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    note: str
    """What is measured, in a sentence."""
    series: tuple[tuple[str, str], ...]
    """(key in metrics.jsonl, label)."""
    style: Literal["lines", "stack"] = "lines"
    tick_format: str = ""
    hover_format: str = ".4g"
    paper: Paper | None = None

    def measured(self, rows: Rows) -> bool:
        return any(row.get(key) is not None for key, _ in self.series for row in rows)


@dataclass(frozen=True, slots=True)
class Group:
    title: str
    charts: tuple[Chart, ...]


def groups(rows: Rows, method: str) -> tuple[Group, ...]:
    """All charts of the page. The paper's ranges are Cal-OPD's, so no other method is held against them."""
    calibrated = method == "cal_opd"
    return (Group("Calibration", _calibration(rows, calibrated)), *STUDENT_AND_OPTIMISATION)


def _calibration(rows: Rows, calibrated: bool) -> tuple[Chart, ...]:
    return (
        Chart(
            "Retained discrepancy",
            "Σ|A kept| / Σ|A_OPD| over all tokens of the step: how much of the teacher's signal is learnt from.",
            (("retained_ratio", "retained"),),
            tick_format=PERCENT,
            hover_format=".1%",
            paper=Paper(0.65, 0.52) if calibrated else None,
        ),
        Chart(
            "Zero-advantage tokens",
            "Share of tokens whose advantage is exactly 0: the student is inside the teacher's region.",
            (("zero_ratio", "zero advantage"),),
            tick_format=PERCENT,
            hover_format=".1%",
            paper=Paper(0.27, 0.34) if calibrated else None,
        ),
        Chart(
            "Region width",
            "Mean of U − L over the tokens, in nats.",
            (("region_width", "U − L"),),
        ),
        Chart(
            "Mean deviation by probe",
            "Mean of D(c) = lT(c) − lT over the tokens, in nats: below 0, the probe makes the response less likely.",
            tuple((f"{DEVIATION}{probe}", f"D({probe})") for probe in probes_of(rows)),
        ),
    )


STUDENT_AND_OPTIMISATION = (
    Group(
        "Student",
        (
            Chart(
                "Accuracy of the rollouts",
                "Share of the step's own responses with the right final answer, at the training temperature.",
                (("accuracy", "accuracy"),),
                tick_format=PERCENT,
                hover_format=".1%",
            ),
            Chart(
                "Response length",
                "Tokens in a response.",
                (
                    ("response_length_mean", "mean"),
                    ("response_length_p50", "median"),
                    ("response_length_p95", "95th percentile"),
                ),
                hover_format=".1f",
            ),
            Chart(
                "Entropy",
                "Mean entropy of the student over the whole vocabulary, in nats.",
                (("entropy", "entropy"),),
            ),
            Chart(
                "Overlap with the teacher's top 16",
                "Tokens: share of the two top-16 sets in common. Mass: probability that both give to the common ones.",
                (("top16_token_overlap", "tokens"), ("top16_mass_overlap", "mass")),
                hover_format=".3f",
            ),
        ),
    ),
    Group(
        "Optimisation",
        (
            Chart("Loss", "The policy-gradient surrogate; its size depends on the advantages.", (("loss", "loss"),)),
            Chart("Gradient norm", "Before clipping.", (("grad_norm", "gradient norm"),)),
            Chart(
                "Learning rate",
                "As the optimizer used it.",
                (("lr", "learning rate"),),
                tick_format="~e",
                hover_format=".3e",
            ),
            Chart(
                "Log-probability mismatch",
                "Mean |rollout engine − learner| over the sampled tokens, in nats: should stay near 0.",
                (("logprob_mismatch", "mismatch"),),
                tick_format="~e",
                hover_format=".2e",
            ),
        ),
    ),
    Group(
        "Time",
        (
            Chart(
                "Seconds by role",
                "Busy seconds of each role, and the learner's idle seconds. The roles work at the same time, so a bar "
                "may be taller than the step took by the clock.",
                (
                    ("seconds_rollout", "rollout"),
                    ("seconds_teacher", "teacher"),
                    ("seconds_learner", "learner"),
                    ("seconds_idle", "learner idle"),
                    ("seconds", "step, by the clock"),
                ),
                style="stack",
                hover_format=".2f",
            ),
        ),
    ),
)


def probes_of(rows: Rows) -> list[str]:
    """Names of the probes that the steps measured, in the order of their appearance."""
    names = dict.fromkeys(key for row in rows for key in row if key.startswith(DEVIATION))
    return [name.removeprefix(DEVIATION) for name in names]


def figure(chart: Chart, rows: Rows) -> dict[str, Any]:
    """The chart as a plotly.js figure: {data, layout}."""
    steps = [row["step"] for row in rows]
    traces = []
    for number, (key, label) in enumerate(chart.series):
        values = [row.get(key) for row in rows]
        trace = {"x": steps, "y": values, "name": escape(label)}
        traces.append(trace | _look(chart, key, number, single=len(rows) == 1))
    return {"data": traces, "layout": chart_layout(chart)}


def _look(chart: Chart, key: str, number: int, single: bool) -> dict[str, Any]:
    """Bars for what is stacked, lines for the rest; a lone point needs a marker to be seen."""
    if chart.style == "stack" and key != "seconds":
        colour = "--idle" if key == "seconds_idle" else SERIES_COLOURS[number % len(SERIES_COLOURS)]
        return {"type": "bar", "marker": {"color": colour, "line": {"width": 0}}}
    colour = "--ink" if chart.style == "stack" else SERIES_COLOURS[number % len(SERIES_COLOURS)]
    return {
        "type": "scatter",
        "mode": "markers" if single else "lines",
        "line": {"color": colour, "width": 1.2 if chart.style == "stack" else 2},
        "marker": {"color": colour, "size": 7},
    }


def base_layout(*, legend: bool) -> dict[str, Any]:
    """What all figures of the pages have in common."""
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


def chart_layout(chart: Chart) -> dict[str, Any]:
    range_mode = "nonnegative" if chart.tick_format == PERCENT else "normal"
    layout = base_layout(legend=len(chart.series) > 1) | {"barmode": "stack", "bargap": 0.15, "hovermode": "x unified"}
    layout["margin"] |= {"t": 24 if chart.paper else 10}
    layout["xaxis"] |= {
        "title": {"text": "step", "standoff": 6, "font": {"size": 12}},
        "zeroline": False,
        "unifiedhovertitle": {"text": "step %{x}"},
    }
    layout["yaxis"] |= {"tickformat": chart.tick_format, "hoverformat": chart.hover_format, "rangemode": range_mode}
    return layout | (_paper_band(chart.paper) if chart.paper else {})


def _paper_band(paper: Paper) -> dict[str, Any]:
    """A faint band over the range the paper's run passed through; the label is above the plot, clear of the curve."""
    low, high = sorted((paper.first, paper.last))
    band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": low, "y1": high, "layer": "below"}
    place = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": 1, "yanchor": "bottom"}
    text = f"grey band: {paper.first:.0%} → {paper.last:.0%} ({PAPER_LABEL})"
    return {
        "shapes": [band | {"fillcolor": "--band", "line": {"width": 0}}],
        "annotations": [place | {"text": text, "showarrow": False, "font": {"size": 11, "color": "--soft"}}],
    }


def render_groups(rows: Rows, method: str) -> str:
    """The sections of the page with the curves; the figures travel as JSON and are drawn by the page's script."""
    return "".join(_render_group(group, rows) for group in groups(rows, method))


def _render_group(group: Group, rows: Rows) -> str:
    cards = "".join(_render_chart(chart, rows) for chart in group.charts)
    return f'<section><h2>{group.title}</h2><div class="charts">{cards}</div></section>\n'


def _render_chart(chart: Chart, rows: Rows) -> str:
    drawn = figure(chart, rows) if chart.measured(rows) else None
    return figure_html(chart.title, chart.note, drawn, absent="not measured in this run")
