"""The tables of an evaluation: for the terminal, and as markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Callable

from rich.table import Table

from calopd.core.paper_results import size_note
from calopd.core.statistics import Difference, Estimate
from calopd.evaluation.paired_comparison import Comparison, ComparisonRow
from calopd.evaluation.results import MEAN, Results, Summary


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def interval(estimate: Estimate) -> str:
    return f"{percent(estimate.low)} – {percent(estimate.high)}"


def points(gain: Difference) -> str:
    """A gain in percentage points with its interval."""
    value, low, high = (f"{100 * x:+.1f}" for x in (gain.estimate.value, gain.estimate.low, gain.estimate.high))
    return f"{value} [{low}, {high}]"


def column_name(name: str) -> str:
    return "Avg." if name == MEAN else name


SUMMARY: dict[str, Callable[[Summary], str]] = {
    "benchmark": lambda row: row.name,
    "problems": lambda row: f"{row.problems:,}",
    "Avg@n": lambda row: percent(row.avg.value),
    "95 % interval": lambda row: interval(row.avg),
    "pass@n": lambda row: percent(row.pass_at_n),
    "maj@n": lambda row: percent(row.majority_at_n),
    "length": lambda row: f"{row.length:,.0f}",
    "truncated": lambda row: f"{percent(row.truncated)} %",
}
"""Column -> cell text; the n in a column name is replaced by its value."""


def summary_table(results: Results) -> Table:
    """Results of one model, by benchmark."""
    table = Table(title=f"{results.label}, n = {results.n}", title_justify="left", box=None, padding=(0, 1))
    for name in SUMMARY:
        table.add_column(
            name.replace("@n", f"@{results.n}"), justify="left" if name == "benchmark" else "right", no_wrap=True
        )
    for row in results.summaries():
        table.add_row(*(show(row) for show in SUMMARY.values()), style="bold" if row.name == MEAN else None)
    return table


def size_notes(results: Results) -> list[str]:
    """Benchmarks of the paper with another number of problems than the paper's."""
    rows = (row for row in results.summaries() if row.name != MEAN)
    return [note for row in rows if (note := size_note(row.name, row.problems))]


def comparison_table(comparison: Comparison) -> Table:
    """The paper's table."""
    table = Table(title=f"Avg@{comparison.n}, %", title_justify="left", box=None, padding=(0, 1))
    table.add_column("model")
    for column in comparison.columns:
        table.add_column(column_name(column), justify="right")
    for row in comparison.rows:
        cells = [percent(row.values[c].value) for c in comparison.columns]
        bold = [
            f"[bold]{x}[/bold]" if comparison.is_best(row, c) else x
            for x, c in zip(cells, comparison.columns, strict=True)
        ]
        table.add_row(row.label, *bold)
    return table


def difference_table(comparison: Comparison) -> Table:
    """Gains over the student with confidence intervals."""
    title = f"Gains over {comparison.student.label}: points with 95 % interval, paired bootstrap over problems"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    for name in ("model", "benchmark", "gain", "p", ""):
        table.add_column(name, justify="left" if name in ("model", "benchmark", "") else "right")
    for row in comparison.rows[1:]:
        for column, gain in row.gains.items():
            word = "significant" if gain.significant else "not significant"
            table.add_row(row.label, column_name(column), points(gain).replace("[", "\\["), p_value(gain.p_value), word)
    return table


def p_value(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def markdown(comparison: Comparison) -> str:
    head = ["Model / Method", *map(column_name, comparison.columns)]
    lines = [head, ["---", *("---:" for _ in comparison.columns)]]
    for row in comparison.rows:
        lines.append([row.label, *(_markdown_cell(comparison, row, c) for c in comparison.columns)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _markdown_cell(comparison: Comparison, row: ComparisonRow, column: str) -> str:
    text = percent(row.values[column].value)
    text = f"**{text}**" if comparison.is_best(row, column) else text
    return f"{text} ({100 * row.gains[column].estimate.value:+.1f})" if row.role == "method" else text


def csv_text(comparison: Comparison) -> str:
    """One line per model and benchmark, at full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["model", "role", "benchmark", "n", "avg", "low", "high", "gain", "gain_low", "gain_high", "p_value"]
    )
    for row in comparison.rows:
        for column in comparison.columns:
            value, gain = row.values[column], row.gains.get(column)
            gains = (gain.estimate.value, gain.estimate.low, gain.estimate.high, gain.p_value) if gain else ("",) * 4
            writer.writerow([row.label, row.role, column, comparison.n, value.value, value.low, value.high, *gains])
    return out.getvalue()


def latex(comparison: Comparison) -> str:
    """The layout of the paper's main table: methods below student and teacher, best in bold, gains as subscripts."""
    columns = comparison.columns
    head = " & ".join(f"\\textbf{{{_tex(column_name(c))}}}" for c in columns)
    lines = [
        f"\\begin{{tabular}}{{@{{}}l{'c' * len(columns)}@{{}}}}",
        "\\toprule",
        f"\\textbf{{Model / Method}} & {head} \\\\",
    ]
    lines.append("\\midrule")
    for row, above in zip(comparison.rows, (None, *comparison.rows), strict=False):
        if above is not None and row.role == "method" and above.role != "method":
            lines.append("\\addlinespace[1pt]")
        cells = " & ".join(_tex_cell(comparison, row, c) for c in columns)
        lines.append(f"{_tex(row.label)} & {cells} \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _tex_cell(comparison: Comparison, row: ComparisonRow, column: str) -> str:
    text = percent(row.values[column].value)
    if row.role != "method":
        return text
    text = f"\\mathbf{{{text}}}" if comparison.is_best(row, column) else text
    return f"${text}_{{{100 * row.gains[column].estimate.value:+.1f}}}$"


def _tex(text: str) -> str:
    return "".join(f"\\{char}" if char in "&%$#_{}" else char for char in text)


EXPORTS: dict[str, Callable[[Comparison], str]] = {"markdown": markdown, "csv": csv_text, "latex": latex}
