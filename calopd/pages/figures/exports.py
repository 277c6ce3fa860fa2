"""Files of a figure or table: CSV at full precision, LaTeX (pgfplots, booktabs) and SVG."""

import csv
import io
from pathlib import Path

from calopd.pages.charts import LIGHT_COLOURS
from calopd.pages.figures.data_table import DataTable
from calopd.pages.figures.line_figure import Line, LineFigure
from calopd.pages.figures.svg_figure import svg
from calopd.rundir.files import write_text


def export_figure(figure: LineFigure, folder: Path) -> None:
    write_text(folder / f"{figure.key}.csv", figure_csv(figure))
    write_text(folder / f"{figure.key}.tex", figure_latex(figure))
    write_text(folder / f"{figure.key}.svg", svg(figure))


def export_table(table: DataTable, folder: Path) -> None:
    write_text(folder / f"{table.key}.csv", table_csv(table))
    write_text(folder / f"{table.key}.tex", table_latex(table))


def figure_csv(figure: LineFigure) -> str:
    """One line per point: series, x, y, bounds of the band."""
    rows: list[list[object]] = [["series", figure.x_title, "value", "low", "high"]]
    for line in figure.lines:
        for place, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
            bounds = [column[place] if column else None for column in (line.low, line.high)]
            rows.append([line.label, x, *("" if value is None else value for value in (y, *bounds))])
    rows += [[mark.label, "" if mark.x is None else mark.x, mark.y, "", ""] for mark in figure.marks]
    return _csv(rows)


def table_csv(table: DataTable) -> str:
    return _csv([table.csv_header, *table.csv_rows])


def _csv(rows: list[list[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def figure_latex(figure: LineFigure) -> str:
    """A pgfplots picture with its numbers in it; a mark has the colour of its line."""
    options = [f"xlabel={{{tex(figure.x_title)}}}", f"ylabel={{{tex(figure.unit)}}}", "legend pos=outer north east"]
    options += ["xmode=log"] if figure.logarithmic_x else []
    options += ["ymode=log"] if figure.logarithmic_y else []
    lines = ["\\begin{tikzpicture}"]
    lines += [f"\\definecolor{{series{n}}}{{HTML}}{{{c[1:].upper()}}}" for n, c in enumerate(LIGHT_COLOURS)]
    lines.append(f"\\begin{{axis}}[title={{{tex(figure.title)}}}, {', '.join(options)}]")
    for number, line in enumerate(figure.lines):
        colour = _colour(number)
        look = f"color={colour}, mark options={{fill={colour}}}, mark size=1pt"
        error = ", error bars/.cd, y dir=both, y explicit" if line.low else ""
        lines.append(f"\\addplot+[{look}{error}] coordinates {{{_coordinates(line)}}};")
        lines.append(f"\\addlegendentry{{{tex(line.label)}}}")
    for mark in figure.marks:
        every = [x for line in figure.lines for x in line.x] or [0.0, 1.0]
        ends = [mark.x] if mark.x is not None else [min(every), max(every)]
        shape = "only marks, mark=diamond" if mark.x is not None else "dotted, no marks"
        points = " ".join(f"({x:g},{mark.y:g})" for x in ends)
        lines.append(f"\\addplot[color={_colour(figure.line_of(mark))}, {shape}] coordinates {{{points}}};")
        lines.append(f"\\addlegendentry{{{tex(mark.label)}}}")
    return "\n".join([*lines, "\\end{axis}", "\\end{tikzpicture}"]) + "\n"


def _colour(number: int | None) -> str:
    """The name of a line's colour, by the number of the line."""
    return "gray" if number is None else f"series{number % len(LIGHT_COLOURS)}"


def _coordinates(line: Line) -> str:
    points = []
    for place, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
        high = line.high[place] if line.high else None
        if y is not None:
            points.append(f"({x:g},{y:.6g})" + (f" +- (0,{high - y:.3g})" if high is not None else ""))
    return " ".join(points)


def table_latex(table: DataTable) -> str:
    """A booktabs table; a row that starts a group is preceded by a rule."""
    lines = [f"\\begin{{tabular}}{{@{{}}l{'c' * (len(table.header) - 1)}@{{}}}}", "\\toprule"]
    lines.append(" & ".join(f"\\textbf{{{tex(cell)}}}" for cell in table.header) + " \\\\")
    for row in table.rows:
        if row.group:
            lines += ["\\midrule", f"\\multicolumn{{{len(table.header)}}}{{c}}{{\\textit{{{tex(row.group)}}}}} \\\\"]
            lines.append("\\midrule")
        cells = [tex(cell) for cell in row.cells]
        lines.append(" & ".join(f"\\textbf{{{c}}}" if n in row.bold else c for n, c in enumerate(cells)) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def tex(text: str) -> str:
    special = {
        "±": "$\\pm$", "→": "$\\to$", "λ": "$\\lambda$", "−": "$-$", "–": "--", "τ": "$\\tau$", "≤": "$\\le$",
        "≥": "$\\ge$", "ρ": "$\\rho$", "|": "$|$", "\\": "\\textbackslash{}", "^": "\\^{}", "~": "\\~{}",
    }  # fmt: skip
    return "".join(special.get(char, f"\\{char}" if char in "&%$#_{}" else char) for char in text)
