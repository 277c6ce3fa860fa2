"""Times of several runs: minutes per step, hours per 100 steps."""

from collections.abc import Sequence

from calopd.core.paper_results import paper_minutes
from calopd.core.statistics import spread
from calopd.pages.comparison.run_groups import RunGroup
from calopd.pages.figures.data_table import DataTable, TableRow

_HEADER = ("Method", "minutes per step", "hours per 100 steps", "learner waits", "tokens per second")
_CSV: list[object] = [
    "pair", "method", "minutes_per_step", "sd_over_seeds", "hours_per_100", "idle_share", "tokens_per_second",
    "paper_minutes_8_h20",
]  # fmt: skip


def efficiency_table(groups: Sequence[RunGroup], key: str = "efficiency") -> DataTable:
    """One row per group. The first step of a run includes start-up work and does not count if there are more."""
    note = "Wall time of the steps, first step left out. ± is over seeds."
    if any(group.emulated for group in groups):
        note += " The times of emulated runs are of a plan, not of GPUs."
    if any(paper_minutes(group.config) is not None for group in groups):
        note += (
            " The paper's minutes are means over 100 steps, in which responses change their length: fewer steps do not "
            "show that part of a difference between methods."
        )
    table = DataTable(key=key, title="Efficiency", note=note, header=_HEADER, csv_header=_CSV)
    pair = ""
    for group in sorted(groups, key=lambda group: group.pair):
        rows = [row for record in group.records for row in (record.steps[1:] or record.steps)]
        if not rows:
            continue
        minutes = spread([_minutes(record.steps) for record in group.records if record.steps])
        seconds = sum(row["seconds"] for row in rows)
        idle = sum(row.get("seconds_idle") or 0.0 for row in rows) / seconds
        rate = sum(row.get("tokens") or 0 for row in rows) / seconds
        digits = 2 if minutes.mean >= 1 else 3
        around = "" if minutes.deviation is None else f" ± {minutes.deviation:.{digits}f}"
        cells = (
            group.label, f"{minutes.mean:.{digits}f}{around}", f"{minutes.mean * 100 / 60:.2f}", f"{idle:.0%}",
            f"{rate:,.0f}",
        )  # fmt: skip
        table.rows.append(TableRow(cells, group=group.pair if group.pair != pair else ""))
        pair = group.pair
        paper = paper_minutes(group.config)
        table.csv_rows.append(
            [pair, group.label, minutes.mean, "" if minutes.deviation is None else minutes.deviation,
             minutes.mean * 100 / 60, idle, rate, "" if paper is None else paper]
        )  # fmt: skip
        if paper is not None:
            cells = (f"{group.label}, the paper on 8 H20", f"{paper:.2f}", f"{paper * 100 / 60:.2f}", "", "")
            table.rows.append(TableRow(cells))
    return table


def _minutes(steps: Sequence[dict[str, float]]) -> float:
    counted = steps[1:] or steps
    return sum(row["seconds"] for row in counted) / len(counted) / 60
