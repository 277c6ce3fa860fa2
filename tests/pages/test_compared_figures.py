"""Charts of several runs: an axis that fits its values, notes that fit the methods."""

import json
import re
from pathlib import Path

import pytest

from calopd.pages.comparison.run_groups import group_runs
from calopd.pages.comparison.step_figures import step_figures
from calopd.pages.figures.line_figure import Line, LineFigure
from calopd.pages.figures.svg_figure import svg
from calopd.rundir.layout import RunDir
from calopd.rundir.run_id import ensure_run_id


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
