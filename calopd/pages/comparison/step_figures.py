"""Metrics of several runs over the steps: one line per group, with a band over its seeds."""

from collections.abc import Sequence

from calopd.core.paper_results import SMALL, TRAINING, paper_arm
from calopd.core.statistics import spread
from calopd.core.step_metrics import METRICS, Metric
from calopd.pages.comparison.run_groups import RunGroup
from calopd.pages.figures.line_figure import Line, LineFigure, Mark
from calopd.pages.report.curves import shown_step

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
                    key=f"{prefix}{key}", title=metric.chart.title, note=_note(metric, groups), unit=metric.unit,
                    lines=lines, marks=paper_marks(groups, key), logarithmic_y=metric.chart.logarithmic,
                )
            )  # fmt: skip
    return figures


def _note(metric: Metric, groups: Sequence[RunGroup]) -> str:
    seeds = {len(group.records) for group in groups}
    if max(seeds) == 1:
        return f"{metric.meaning}. One seed."
    counted = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
    return f"{metric.meaning}. Mean over {counted} seeds; the band is ± one standard deviation over them."


def _line(group: RunGroup, key: str) -> Line | None:
    by_step: dict[int, list[float]] = {}
    for record in group.records:
        for row in record.steps:
            if row.get(key) is not None:
                by_step.setdefault(shown_step(row), []).append(row[key])
    if not by_step:
        return None
    steps = sorted(by_step)
    spreads = [spread(by_step[step]) for step in steps]
    means = [one.mean for one in spreads]
    if all(one.deviation is None for one in spreads):
        return Line(group.label, steps, means)
    width = [one.deviation or 0.0 for one in spreads]
    low = [mean - each for mean, each in zip(means, width, strict=True)]
    high = [mean + each for mean, each in zip(means, width, strict=True)]
    return Line(group.label, steps, means, low, high)


def paper_marks(groups: Sequence[RunGroup], key: str) -> tuple[Mark, ...]:
    """The paper's values at the end of training, of the groups whose settings are the paper's."""
    marks = []
    for group in groups:
        found = paper_arm(group.config)
        if found is not None and found[0] == SMALL and found[1] in TRAINING.get(key, {}):
            marks.append(Mark(f"{group.label}, the paper at the end", TRAINING[key][found[1]]))
    return tuple(marks)
