"""Charts of several runs: an axis that fits its values, notes that fit the methods."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from calopd.config import load_config
from calopd.pages.charts import LIGHT_COLOURS, SERIES_COLOURS
from calopd.pages.comparison.run_groups import RunGroup, group_runs
from calopd.pages.comparison.step_figures import step_figures
from calopd.pages.figures.exports import figure_latex
from calopd.pages.figures.line_figure import Line, LineFigure, Mark
from calopd.pages.figures.svg_figure import NEUTRAL, svg
from calopd.pages.report.report_page import RunRecord
from calopd.rundir.layout import RunDir
from calopd.rundir.run_id import ensure_run_id
from tests.services.processes import ROOT


def constant(unit: str, *values: float, logarithmic: bool = False) -> LineFigure:
    line = Line("one", range(len(values)), values)
    return LineFigure(key="k", title="t", note="n", unit=unit, lines=(line,), logarithmic_y=logarithmic)


def test_a_constant_does_not_fill_the_chart_with_its_rounding() -> None:
    figure = constant("ratio", 1.2500001, 1.25, 1.2499998)
    low, high = figure.plotly()["layout"]["yaxis"]["range"]
    assert high - low == pytest.approx(0.05)
    drawn = svg(figure)
    ticks = re.findall(r'text-anchor="end"[^>]*>([^<]*)', drawn)
    assert ticks == ["123 %", "124 %", "125 %", "126 %", "127 %"]
    assert re.findall(r'text-anchor="middle"[^>]*>([^<]*)', drawn) == ["0", "1", "2", "step"], "no half steps"
    assert "range" not in constant("ratio", 0.2, 0.6).plotly()["layout"]["yaxis"]


def test_small_values_of_a_logarithmic_chart_stand_low() -> None:
    assert constant("nats", 3.7e-7, 1e-7, logarithmic=True).plotly()["layout"]["yaxis"]["range"] == [-8, -2]
    assert "<svg" in svg(constant("nats", 3.7e-7, 1e-7, logarithmic=True))


@pytest.mark.parametrize(("method", "width"), [("opd", None), ("cal_opd", 0.5)])
def test_only_a_method_with_a_region_speaks_of_one(tmp_path: Path, method: str, width: float | None) -> None:
    run_dir = RunDir(tmp_path / method)
    ensure_run_id(run_dir)
    run_dir.config.write_text(f'[method]\nname = "{method}"\n[student]\npath = "s"\n[teacher]\npath = "t"\n')
    run_dir.metrics.write_text(json.dumps({"step": 0, "zero_ratio": 0.5, "region_width": width}) + "\n")
    (figure,) = step_figures(group_runs([run_dir]), ["zero_ratio"])
    assert ("region" in figure.note) is (width is not None)
    assert figure.note.startswith("Share of tokens with zero advantage")
    assert figure.note.endswith(". One seed.")


def test_runs_that_differ_in_too_much_for_a_legend_have_their_own_names(tmp_path: Path) -> None:
    runs = []
    for name in ("mine", "yours"):
        run_dir = RunDir(tmp_path / name)
        ensure_run_id(run_dir)
        models = (
            f'[student]\npath = "{name}/a/long/path/of/a/student"\n[teacher]\npath = "{name}/a/path/of/a/teacher"\n'
        )
        run_dir.config.write_text(f'[run]\nname = "{name}"\n[method]\nname = "opd"\n{models}')
        run_dir.metrics.write_text(json.dumps({"step": 0, "zero_ratio": 0.5, "region_width": None}) + "\n")
        runs.append(run_dir)
    mine, yours = group_runs(runs)
    assert (mine.label, yours.label) == ("opd, mine", "opd, yours")
    assert "mine/a/long/path/of/a/student" in mine.description


def test_an_svg_has_its_lines_bands_marks_and_gaps() -> None:
    figure = LineFigure(
        key="f", title="A & B", note="", unit="ratio", logarithmic_x=True,
        lines=(Line("one", [1, 10, 99], [0.1, None, 0.3], [0.0, None, 0.2], [0.2, None, 0.4]), Line("two", [1], [0.5])),
        marks=(Mark("level", 0.25), Mark("point", 0.3, 10)),
    )  # fmt: skip
    root = ElementTree.fromstring(svg(figure))
    found = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert (found.count("polyline"), found.count("polygon"), found.count("circle")) == (1, 1, 3)
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"A & B", "one", "two", "level", "point"} <= set(texts)


def test_a_band_below_zero_ends_at_the_bottom_of_a_logarithmic_axis() -> None:
    """Two seeds at 0.001 and 0.1 have a deviation that is larger than their mean."""
    line = Line.over_seeds("one", [1, 2, 3], [[0.001, 0.1], [0.1, 0.2], [0.3]])
    figure = LineFigure(key="f", title="f", note="", unit="nats", logarithmic_y=True, lines=(line,))
    assert line.low[0] < 0
    assert [x for x, _, _ in figure.band(line)] == [1, 2], "one seed alone has no deviation"
    assert min(figure.band(line)[0][1:]) == min(value for value in figure.heights if value > 0)
    places = ElementTree.fromstring(svg(figure)).find(".//{*}polygon").attrib["points"].split()
    assert len(places) == 4
    outline = figure.plotly()["data"][0]["y"]
    assert min(outline) > 0
    assert len(outline) == 4


def test_the_papers_value_has_the_colour_of_its_run() -> None:
    """Two of the three runs have a value of the paper, and it stands beside its own line."""
    groups = []
    for label, *given in (
        ("λ = 1", "method.relaxation=1"),
        ("sol", 'method.probes=["sol"]'),
        ("OPD", "method.name=opd"),
    ):
        config = load_config(ROOT / "configs" / "qwen3-4b-to-1.7b.toml", given, environ={}).model_dump(mode="json")
        groups.append(RunGroup(label, [RunRecord(config, [{"step": 0, "entropy": 0.3}], None, [])]))
    (figure,) = step_figures(groups, ["entropy"])
    assert [(mark.y, figure.line_of(mark)) for mark in figure.marks] == [(0.36, 1), (0.20, 2)]
    dotted = [trace["line"]["color"] for trace in figure.plotly()["data"][3:]]
    assert dotted == [SERIES_COLOURS[1], SERIES_COLOURS[2]]
    paths = [element.attrib for element in ElementTree.fromstring(svg(figure)).iter() if element.tag.endswith("path")]
    drawn = [path["stroke"] for path in paths if "stroke-dasharray" in path]
    assert drawn == [LIGHT_COLOURS[1], LIGHT_COLOURS[2]] * 2, "in the chart, then in the legend"
    latex = figure_latex(figure)
    assert re.findall(r"addplot\[color=(\w+), dotted", latex) == ["series1", "series2"]
    assert re.findall(r"addplot\+\[color=(\w+)", latex) == ["series0", "series1", "series2"]
    assert "\\definecolor{series2}{HTML}{4F8A5B}" in latex


def test_a_mark_without_a_line_is_neutral() -> None:
    marks = (Mark("level", 0.3), Mark("point", 0.4, 1, line="another"))
    figure = LineFigure(
        key="k", title="t", note="n", unit="ratio", lines=(Line("one", [0, 1], [0.2, 0.6]),), marks=marks
    )
    level, point = figure.plotly()["data"][1:]
    assert (level["line"]["color"], point["marker"]["color"]) == ("--soft", "--ink")
    assert svg(figure).count(NEUTRAL) == 4
    assert figure_latex(figure).count("color=gray") == 2
