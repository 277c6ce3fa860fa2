"""The curve of the policies that were evaluated while the run went on."""

from calopd.pages.document import figure_html
from calopd.pages.report.curves import PERCENT, Chart, Rows, chart_layout


def render_evaluations(evaluations: Rows) -> str:
    """Held-out accuracy by policy, with the 95 % interval over problems; nothing where none was evaluated."""
    if not evaluations:
        return ""
    chart = Chart("Held-out accuracy", "", (), tick_format=PERCENT, hover_format=".1%")
    bounds = [row["interval_95"] or (row["accuracy"], row["accuracy"]) for row in evaluations]
    trace = {
        "type": "scatter",
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
        "line": {"color": "--series-1", "width": 2},
        "marker": {"color": "--series-1", "size": 7},
    }
    layout = chart_layout(chart)
    layout["xaxis"] |= {"title": {"text": "policy (optimizer steps done)", "standoff": 6, "font": {"size": 12}}}
    newest = evaluations[-1]
    note = (
        f"{newest['problems']:,} held-out problems, {newest['samples']} response(s) each, answered by idle replicas; "
        "bars are 95 % intervals over problems."
    )
    figure = figure_html(chart.title, note, {"data": [trace], "layout": layout})
    return f'<section><h2>Evaluation</h2><div class="charts">{figure}</div></section>\n'
