"""The report: every curve has its data, tokens are escaped, nothing is loaded from elsewhere."""

import json
import re
import sys
import tomllib
from html import escape
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from calopd.cli.main import main
from calopd.config import load_config
from calopd.core import step_metrics
from calopd.core.step_metrics import METRICS, PROBE
from calopd.pages.charts import value_range, whole_ticks
from calopd.pages.report import write_report
from calopd.pages.report.curves import PAPER_LABEL
from calopd.pages.token_view import deviation_class, kept_class, visible
from calopd.rundir.files import write_json
from calopd.rundir.layout import RunDir
from tests.services.processes import ROOT

CONFIG: dict[str, dict[str, Any]] = {
    "run": {"name": "tiny", "steps": 3},
    "student": {"path": "examples/demo/student"},
    "teacher": {"path": "examples/demo/teacher"},
    "method": {"name": "cal_opd", "relaxation": 5.0, "probes": ["eval"]},
    "rollout": {"engine": "torch"},
}
PROBES = ("eval+", "eval-")
KEYS = [key.replace(PROBE, probe) for key in (m.key for m in METRICS) for probe in (PROBES if PROBE in key else ("",))]
"""The keys of a line of metrics.jsonl."""
SUMMARY = {
    "method": "cal_opd", "sampler": "torch 2", "accuracy_before": 0.4, "accuracy_after": 0.55,
    "gain_interval_95": [0.1, 0.2], "evaluation_problems": 1000, "retained_ratio": 0.6, "zero_ratio": 0.3,
    "tickets_issued": 12, "trajectories_used": 11, "seconds": 90.0,
}  # fmt: skip
TRAJECTORY = {
    "step": 0, "index": 0, "problem_id": "p<1>", "correct": True, "response_ids": [1, 2, 3],
    "tokens": ["<think>", " \"a\" & </script>", "\n"], "student_logprobs": [-2.0, -2.0, -1.0],
    "teacher_logprobs": {"c0": [-1.0, -1.0, -1.0], "eval+": [-0.5, -1.05, -0.8], "eval-": [-1.1, -1.5, -1.3]},
    "advantage": [0.5, 0.0, 0.0],
}  # fmt: skip


def metric(step: int, place: int) -> float:
    """A number that is found nowhere else in the page."""
    return (1000 * step + place + 1) / 7919


def make_run(
    path: Path,
    steps: int = 3,
    summary: dict[str, Any] | None = None,
    trajectories: tuple[dict[str, Any], ...] = (),
    config: dict[str, dict[str, Any]] = CONFIG,
) -> RunDir:
    path.mkdir(exist_ok=True)
    run_dir = RunDir(path)
    run_dir.config.write_text(tomli_w.dumps(config))
    rows = [{name: metric(s, place) for place, name in enumerate(KEYS)} | {"step": s} for s in range(steps)]
    run_dir.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if summary is not None:
        run_dir.summary.write_text(json.dumps(summary))
    if trajectories:
        run_dir.trajectories.write_text("".join(json.dumps(row) + "\n" for row in trajectories))
    return run_dir


def page_of(run_dir: RunDir) -> str:
    return write_report(run_dir).read_text(encoding="utf-8")


def drawn(page: str) -> list[dict[str, Any]]:
    """The traces of all figures in the page."""
    figures = re.findall(r'<script type="application/json">(.*?)</script>', page, flags=re.S)
    return [trace for figure in figures for trace in json.loads(figure)["data"]]


def test_every_metric_is_drawn_once(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path, summary=SUMMARY, trajectories=(TRAJECTORY,)))
    curves = {trace["meta"]: trace["y"] for trace in drawn(page)}
    expected = {name: [metric(step, place) for step in range(3)] for place, name in enumerate(KEYS)}
    assert curves == expected | {"step": [1, 2, 3]}
    assert len(drawn(page)) == len(KEYS)
    assert "Not measured" not in page
    assert PAPER_LABEL not in page


def test_the_papers_range_is_shown_beside_its_settings_only(tmp_path: Path) -> None:
    papers = tomllib.loads(load_config(ROOT / "configs" / "qwen3-4b-to-1.7b.toml", environ={}).to_toml())
    assert page_of(make_run(tmp_path, config=papers)).count(PAPER_LABEL) == 2
    for section, key, value in (
        ("method", "relaxation", 1.0),
        ("method", "probes", ["inst"]),
        ("learner", "samples", 2),
        ("learner", "learning_rate", 2e-6),
        ("run", "steps", 50),
        ("student", "path", "Qwen/Qwen3-4B"),
    ):
        other = papers | {section: papers[section] | {key: value}}
        assert PAPER_LABEL not in page_of(make_run(tmp_path, config=other))


def test_charts_come_in_the_order_of_their_groups(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path))
    titles = [chart.title for charts in step_metrics.charts().values() for chart in charts]
    places = [page.index(f"<h3>{escape(title)}</h3>") for title in titles]
    assert places == sorted(places)
    assert titles[0] == "Retained discrepancy"


def test_metrics_of_one_chart_share_a_unit() -> None:
    """One axis has one format."""
    bare = {"count": "", "": ""}
    for charts in step_metrics.charts().values():
        for chart, metrics in charts.items():
            assert len({bare.get(m.unit, m.unit) for m in metrics}) == 1, chart.title
            assert len(metrics) == 1 or all(m.label for m in metrics), chart.title


def test_header_tells_the_gain_with_its_interval(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path, summary=SUMMARY))
    assert "40.0 % → 55.0 %" in page
    assert "gain +15.0 points, 95 % interval +10.0 to +20.0; 1,000 problems" in page
    assert "11 / 12" in page
    assert "Unfinished" not in page


def test_tokens_and_names_are_escaped(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path, trajectories=(TRAJECTORY,)))
    section = page[page.index('<section id="trajectories"') : page.index("<details>")]
    for escaped in ("&lt;think&gt;", "&lt;/script&gt;", "p&lt;1&gt;"):
        assert escaped in section
    for raw in ("<think>", "</script>", "p<1>"):
        assert raw not in section


def test_tooltip_holds_the_numbers_of_the_token(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path, trajectories=(TRAJECTORY,)))
    assert "lS -2.000   lT -1.000\nD(eval+) +0.500   D(eval-) -0.100\n[L, U] = [-1.500, 1.500]" in page
    assert "A_OPD +1.000   A +0.500" in page


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path, summary=SUMMARY, trajectories=(TRAJECTORY,)))
    assert not re.search(r"""src=["']http|<link[^>]+href=["']http|@import|<script[^>]+src=""", page)
    assert "default-src 'none'" in page
    assert "showSendToCloud: false" in page
    assert page.count("* plotly.js v") == 1


def test_unfinished_run_says_so(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path, steps=2))
    assert "Unfinished run: 2 of 3 steps are recorded" in page
    assert len(drawn(page)) == len(KEYS)


def test_run_without_steps(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path, steps=0))
    assert "No step has been recorded yet" in page
    assert drawn(page) == []


def test_run_without_probes_is_held_against_nothing(tmp_path: Path) -> None:
    config = CONFIG | {"method": {"name": "opd"}, "student": {"path": "Qwen/Qwen3-1.7B"}}
    trajectory = TRAJECTORY | {"teacher_logprobs": {"c0": [-1.0, -1.0, -1.0]}, "advantage": [1.0, 1.0, 0.0]}
    page = page_of(make_run(tmp_path, trajectories=(trajectory,), config=config))
    assert PAPER_LABEL not in page
    assert 'data-view="kept"' in page
    assert "synthetic data" not in page


def test_missing_values_are_gaps(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, steps=0)
    rows: list[dict[str, Any]] = [{"step": 0, "entropy": 0.5, "loss": None}, {"step": 1, "entropy": None, "loss": None}]
    run_dir.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = page_of(run_dir)
    assert {trace["meta"]: trace["y"] for trace in drawn(page)} == {"step": [1, 2], "entropy": [0.5, None]}
    (absent,) = re.findall("Not measured in this run: (.*)[.]</p>", page)
    assert "Forward KL" in absent
    assert "Entropy" not in absent


@pytest.mark.parametrize(
    ("deviation", "name"),
    [(0.1, ""), (-0.1, ""), (0.11, "up1"), (-0.3, "down1"), (0.7, "up2"), (-1.6, "down4"), (9, "up5")],
)
def test_deviation_bands(deviation: float, name: str) -> None:
    assert deviation_class(deviation) == name


@pytest.mark.parametrize(
    ("kept", "raw", "name"),
    [(0, 1, "removed"), (1, 1, "more4"), (-2, -2, "less4"), (0.5, 1, "more2"), (-0.1, -1, "less1"), (0, 0.005, ""),
     (3, 0, "more4")],
)  # fmt: skip
def test_kept_classes(kept: float, raw: float, name: str) -> None:
    assert kept_class(kept, raw) == name


def test_whitespace_is_seen() -> None:
    assert visible("\n\n") == '<i class="ws">↵</i>\n' * 2
    assert visible("  ") == '<i class="ws">··</i>'
    assert visible(" a") == " a"
    assert visible("") == '<i class="ws">∅</i>'


def figures_of(page: str) -> list[dict[str, Any]]:
    return [json.loads(f) for f in re.findall(r'<script type="application/json">(.*?)</script>', page, flags=re.S)]


def test_steps_count_from_one_and_ticks_are_whole(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path, trajectories=(TRAJECTORY,)))
    assert "<h3>Step 1</h3>" in page
    for figure in figures_of(page):
        assert figure["data"][0]["x"] == [1, 2, 3]
        assert figure["layout"]["xaxis"]["dtick"] == 1


@pytest.mark.parametrize(("last", "dtick"), [(2, 1), (10, 1), (50, 5), (100, 10), (120, 20), (1000, 100)])
def test_an_axis_has_about_ten_whole_ticks(last: int, dtick: int) -> None:
    assert whole_ticks(0, last) == {"tick0": 0, "dtick": dtick}


def test_a_constant_does_not_fill_the_chart_with_its_rounding() -> None:
    low, high = value_range("ratio", [1.2500001, 1.25, 1.2499998])
    assert high - low == pytest.approx(0.05)
    assert low < 1.25 < high
    assert value_range("ratio", [0.2, 0.6]) is None
    assert value_range("nats", [3.7e-7, 1e-7], logarithmic=True) == [-8, -2]
    assert value_range("nats", [0.02, 0.5], logarithmic=True) is None


def test_a_constant_count_has_whole_ticks_and_a_zero_that_is_seen(tmp_path: Path) -> None:
    low, high = value_range("versions", [0.0, 0.0])
    assert -0.1 < low < 0 < high == 1
    run_dir = make_run(tmp_path)
    rows = [json.loads(line) | {"tickets_used": 100, "trajectories_kept": 100, "tickets_missing": 99}
            for line in run_dir.metrics.read_text().splitlines()]  # fmt: skip
    run_dir.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tickets,) = (one for one in figures_of(page_of(run_dir)) if one["data"][0]["meta"] == "trajectories_kept")
    assert tickets["layout"]["yaxis"]["dtick"] == 1
    assert tickets["layout"]["yaxis"]["range"] == [97.5, 101.5]


def test_a_method_without_probes_is_not_described_by_a_region(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, config=CONFIG | {"method": {"name": "opd"}})
    rows = [json.loads(line) for line in run_dir.metrics.read_text().splitlines()]
    for row in rows:
        row.update({key: None for key in row if key.startswith(("region", "deviation"))})
    run_dir.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    captions = re.findall(r"<figcaption>.*?</figcaption>", page_of(run_dir))
    assert captions
    assert not [caption for caption in captions if "region" in caption]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_report_for_another_place_leaves_the_run_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = make_run(tmp_path / "run", summary=SUMMARY, trajectories=(TRAJECTORY,))
    write_json(run_dir.run_id, {"id": "run-1", "started": 1.0})
    trace = run_dir.trace_parts / "learner.jsonl"
    trace.parent.mkdir()
    trace.write_text('["step", "", 1, 2, {}]\n')
    before = contents(run_dir.path)

    def report(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["calopd", "report", str(run_dir.path), *words])
        main()
        return capsys.readouterr().out

    page = report("-o", "-")
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    other = tmp_path / "pages" / "other.html"
    assert report("-o", str(other)) == f"{other}\n"
    assert other.read_text(encoding="utf-8") == page
    assert contents(run_dir.path) == before
    report()
    assert contents(run_dir.path).keys() - before.keys() == {run_dir.report.name, run_dir.trace.name}
