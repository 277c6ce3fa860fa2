"""The page of `calopd report compare`: the curves of several runs, their times, and the exported files."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from calopd.pages.charts import STEP_HEIGHT
from calopd.pages.comparison.efficiency import efficiency_table
from calopd.pages.comparison.run_groups import RunGroup
from calopd.pages.comparison.step_figures import step_figures
from calopd.pages.document import document, figure_html
from calopd.pages.figures.exports import export_figure, export_table
from calopd.pages.figures.line_figure import LineFigure
from calopd.pages.report.report_page import EMULATED_NOTE
from calopd.rundir.files import write_text

FIGURE_HEIGHT = STEP_HEIGHT + 60
"""A legend of several lines needs room."""


def render_figures(figures: Sequence[LineFigure]) -> str:
    cards = "".join(figure_html(figure.title, figure.note, figure.plotly(), height=FIGURE_HEIGHT) for figure in figures)
    return f'<div class="charts">{cards}</div>'


def write_comparison_of_runs(groups: Sequence[RunGroup], out: Path) -> Path:
    """Write out/compare.html, and every figure and table as CSV, LaTeX and SVG beside it."""
    figures, table = step_figures(groups), efficiency_table(groups)
    for figure in figures:
        export_figure(figure, out)
    export_table(table, out)
    runs = "".join(
        f"<span>{escape(group.description)} <b>{', '.join(escape(record.name) for record in group.records)}</b></span>"
        for group in groups
    )
    notice = f'<p class="notice">{escape(EMULATED_NOTE)}</p>' if any(group.emulated for group in groups) else ""
    body = (
        '<header class="top"><p class="kicker">Comparison of runs</p>'
        f"<h1>{len(groups)} settings, {sum(len(group.records) for group in groups)} runs</h1>"
        f'<p class="about">{runs}</p></header>{notice}'
        f"<section><h2>Training</h2>{render_figures(figures)}</section><section>{table.html('h2')}</section>"
    )
    return write_text(out / "compare.html", document("Comparison of runs", body))
