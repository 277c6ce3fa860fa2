"""The curve of the policies that were evaluated during the run."""

from typing import Any

from calopd.pages.charts import STEP_HEIGHT, line_trace, step_layout, whole_ticks
from calopd.pages.document import figure_html
from calopd.pages.report.curves import Rows


def render_evaluations(evaluations: Rows) -> str:
    """Held-out accuracy by policy, with the 95 % interval over problems; empty if no policy was evaluated."""
    if not evaluations:
        return ""
    bounds = [row["interval_95"] or (row["accuracy"], row["accuracy"]) for row in evaluations]
    trace: dict[str, Any] = line_trace("--series-1", single=False) | {
        "mode": "lines+markers",
        "name": "held-out accuracy",
        "x": [row["policy_version"] for row in evaluations],
        "y": [row["accuracy"] for row in evaluations],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [high - row["accuracy"] for row, (_, high) in zip(evaluations, bounds, strict=True)],
            "arrayminus": [row["accuracy"] - low for row, (low, _) in zip(evaluations, bounds, strict=True)],
            "thickness": 1,
            "color": "--series-1",
        },
    }
    layout = step_layout("ratio", x_title="policy")
    layout["xaxis"] |= whole_ticks(evaluations[0]["policy_version"], evaluations[-1]["policy_version"])
    newest = evaluations[-1]
    note = (
        f"{newest['problems']:,} held-out problems, responses per problem: {newest['samples']}, by the policy after "
        "that many optimizer steps; bars are 95 % intervals over problems."
    )
    figure = figure_html("Held-out accuracy", note, {"data": [trace], "layout": layout}, height=STEP_HEIGHT)
    return f'<section><h2>Evaluation</h2><div class="charts">{figure}</div></section>\n'
