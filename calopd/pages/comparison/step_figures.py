"""Metrics of several runs over the steps: one line per group, with a band over its seeds."""

from collections.abc import Sequence

from calopd.core.paper_results import paper_at_end
from calopd.core.step_metrics import METRICS, Metric
from calopd.pages.comparison.run_groups import RunGroup
from calopd.pages.figures.line_figure import Line, LineFigure, Mark
from calopd.pages.report.curves import shown_step, without_region

COMPARED = (
    "retained_ratio", "zero_ratio", "response_length_mean", "entropy", "top16_token_overlap", "top16_mass_overlap",
    "grad_norm",
)  # fmt: skip
"""Metrics of the paper's figures."""


def step_figures(groups: Sequence[RunGroup], keys: Sequence[str] = COMPARED, prefix: str = "") -> list[LineFigure]:
    """One figure per metric that was measured."""
    metrics = {metric.key: metric for metric in METRICS}
    figures = []
    for key in keys:
        lines = tuple(line for group in groups if (line := _line(group, key)) is not None)
        if lines:
            metric = metrics[key]
            figures.append(
                LineFigure(
                    key=f"{prefix}{key}", title=_title(metric), note=_note(metric, groups), unit=metric.unit,
                    lines=lines, marks=paper_marks(groups, key), logarithmic_y=metric.chart.logarithmic,
                )
            )  # fmt: skip
    return figures


def _title(metric: Metric) -> str:
    """The chart's, with the metric's label in a chart of several."""
    return f"{metric.chart.title}: {metric.label}" if metric.label else metric.chart.title


def _note(metric: Metric, groups: Sequence[RunGroup]) -> str:
    """The meaning of the metric and the number of seeds; of a region only if one of the methods has one."""
    probed = any(row.get("region_width") is not None for group in groups for r in group.records for row in r.steps)
    meaning = metric.meaning if probed else without_region(metric.meaning).removesuffix(".")
    seeds = {len(group.records) for group in groups}
    if max(seeds) == 1:
        return f"{meaning}. One seed."
    counted = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    repeats = "seeds" if all(group.seeds_differ for group in groups) else "runs"
    return f"{meaning}. Mean over {counted} {repeats}; the band is ± one standard deviation over them."


def _line(group: RunGroup, key: str) -> Line | None:
    by_step: dict[int, list[float]] = {}
    for record in group.records:
        for row in record.steps:
            if row.get(key) is not None:
                by_step.setdefault(shown_step(row), []).append(row[key])
    if not by_step:
        return None
    steps = sorted(by_step)
    return Line.over_seeds(group.label, steps, [by_step[step] for step in steps])


def paper_marks(groups: Sequence[RunGroup], key: str) -> tuple[Mark, ...]:
    """The paper's values at the end of training, of the groups whose settings are the paper's."""
    marks = []
    for group in groups:
        if (value := paper_at_end(group.config, key)) is not None:
            marks.append(Mark(f"{group.label}, the paper at the end", value, line=group.label))
    return tuple(marks)
