"""Times of several runs: minutes per step, hours per 100 steps."""

from collections.abc import Sequence

from calopd.core.paper_results import MINUTES, arm_of, paper_arm
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
    table = DataTable(
        key=key, title="Efficiency", note="Wall time of the steps, first step left out. ± is over seeds.",
        header=_HEADER, csv_header=_CSV,
    )  # fmt: skip
    pair = ""
    for group in sorted(groups, key=lambda group: group.pair):
        rows = [row for record in group.records for row in (record.steps[1:] or record.steps)]
        if not rows:
            continue
        minutes = spread([_minutes(record.steps) for record in group.records if record.steps])
        seconds = sum(row["seconds"] for row in rows)
        idle = sum(row.get("seconds_idle") or 0.0 for row in rows) / seconds
        rate = sum(row.get("tokens") or 0 for row in rows) / seconds
        around = "" if minutes.deviation is None else f" ± {minutes.deviation:.2f}"
        cells = (
            group.label, f"{minutes.mean:.2f}{around}", f"{minutes.mean * 100 / 60:.2f}", f"{idle:.0%}", f"{rate:,.0f}"
        )  # fmt: skip
        table.rows.append(TableRow(cells, group=group.pair if group.pair != pair else ""))
        pair = group.pair
        paper = _paper_minutes(group)
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


def _paper_minutes(group: RunGroup) -> float | None:
    found = paper_arm(group.config)
    return None if found is None else MINUTES.get(found[0], {}).get(arm_of(group.config).partition("/")[0])
