"""Tables and figures of an experiment, from records as its runs leave them."""

import csv
import json
import re
from html import escape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from calopd.config import load_config
from calopd.core.paper_results import BENCHMARK_SIZES, BENCHMARKS
from calopd.core.statistics import holm
from calopd.evaluation.benchmarks import load_benchmark
from calopd.evaluation.job import Settings
from calopd.experiments.accuracy_table import difference_table, scored_arms, size_notes
from calopd.experiments.experiment_figures import run_groups
from calopd.experiments.experiment_file import load_experiment
from calopd.experiments.experiment_page import write_results
from calopd.experiments.job_execution import is_done
from calopd.experiments.model_scores import ModelScores, evaluation_settings
from calopd.experiments.planned_runs import ExperimentPlan, evaluated_model, plan_experiment
from calopd.pages.comparison.compared_page import write_comparison_of_runs
from calopd.pages.comparison.run_groups import group_runs
from calopd.pages.report.report_page import EMULATED_NOTE
from calopd.rundir.files import read_lines, write_json, write_lines, write_text
from calopd.rundir.layout import RunDir
from calopd.rundir.run_id import ensure_run_id
from tests.experiments.finished_runs import finish_run
from tests.services.processes import ROOT

ARMS = """
[arms.opd]
label = "OPD"
set.method.name = "opd"
[arms.lambda]
label = "Cal-OPD, λ = {relaxation}"
grid."method.relaxation" = [1, 5]
[[tables]]
key = "main"
title = "Main"
arms = ["opd", "lambda"]
against = "opd"
[[figures]]
key = "lambda"
title = "Sweep"
kind = "sweep"
arms = ["lambda"]
x = "method.relaxation"
[[figures]]
key = "training"
title = "Training"
arms = ["opd", "lambda"]
metrics = ["retained_ratio", "grad_norm"]
"""


def experiment(folder: Path, recipe: str = "demo", evaluation: str = "", seeds: str = "[0, 1]") -> ExperimentPlan:
    file = folder / "mine.toml"
    recipes = f'[recipes]\npair = "{ROOT / "configs" / recipe}.toml"\n'
    file.write_text(f'title = "Mine"\ndir = "{folder / "out"}"\nseeds = {seeds}\n{recipes}{evaluation}{ARMS}')
    return plan_experiment(file, load_experiment(file), environ={})


def write_scores(plan: ExperimentPlan, name: str, **scores: list[float]) -> None:
    digests = dict.fromkeys(scores, "same")
    numbers = dict.fromkeys(scores, 1.0)
    part = plan.experiment.evaluation
    wanted = Settings("", "", None, "", None, **evaluation_settings(part)).to_json()
    model = next((evaluated_model(job) for job in plan.baselines if job.name == name), "")
    write_json(plan.files.scores(name), {
        "scores": scores, "sha256": digests, "length": numbers, "truncated": numbers,
        "settings": {**wanted, "problems": part.problems, "model": model},
    })  # fmt: skip


def write_run(plan: ExperimentPlan, name: str, *, retained: float) -> None:
    finish_run(next(job for job in plan.runs if job.name == name).config, retained=retained)


def read_csv(file: Path) -> list[dict[str, str]]:
    with file.open() as lines:
        return list(csv.DictReader(lines))


@pytest.fixture
def finished(tmp_path: Path) -> ExperimentPlan:
    evaluation = '[evaluation]\nbenchmarks = ["a.jsonl", "b.jsonl"]\nn = 2\n'
    plan = experiment(tmp_path, evaluation=evaluation)
    write_scores(plan, "pair.student", a=[0.0, 0.5, 0.0], b=[0.0])
    write_scores(plan, "pair.teacher", a=[1.0, 1.0, 1.0], b=[1.0])
    for seed, (opd, low, high) in enumerate([(0.4, 0.5, 0.6), (0.5, 0.6, 0.8)]):
        for name, value, retained in (
            (f"pair.opd.s{seed}", opd, 1.0),
            (f"pair.cal_opd.relaxation-1.s{seed}", low, 0.8),
            (f"pair.cal_opd.s{seed}", high, 0.6),
        ):
            write_scores(plan, name, a=[value, value, value], b=[value])
            write_run(plan, name, retained=retained + seed / 10)
    return plan


def test_the_table_has_mean_and_deviation_over_seeds(finished):
    write_results(finished)
    out = finished.files.results("mine")
    rows = {(row["model"], row["benchmark"]): row for row in read_csv(out / "main.csv")}
    best = rows["Cal-OPD, λ = 5", "mean"]
    assert float(best["mean"]) == pytest.approx(0.7)
    assert float(best["sd_over_seeds"]) == pytest.approx(np.std([0.6, 0.8], ddof=1))
    assert (best["seeds"], best["paper"]) == ("2", "")
    assert float(rows["Student", "mean"]["mean"]) == pytest.approx((0.5 / 3 + 0) / 2), "benchmarks count equally"
    assert rows["Student", "mean"]["sd_over_seeds"] == ""
    latex = (out / "main.tex").read_text()
    assert "\\textbf{70.0 $\\pm$ 14.1}" in latex
    assert "$\\lambda$" in latex


def test_differences_are_paired_by_seed_and_corrected(finished):
    write_results(finished)
    rows = read_csv(finished.files.results("mine") / "main-differences.csv")
    assert [row["model"] for row in rows] == ["Cal-OPD, λ = 1", "Cal-OPD, λ = 5"]
    assert float(rows[0]["difference"]) == pytest.approx(0.1)
    assert float(rows[0]["low"]) == float(rows[0]["high"]) == pytest.approx(0.1), "both seeds gain the same"
    corrected = holm({row["model"]: float(row["p_value"]) for row in rows})
    assert [float(row["p_holm"]) for row in rows] == pytest.approx(list(corrected.values()))


def test_a_table_grows_with_its_runs(tmp_path):
    plan = experiment(tmp_path, evaluation='[evaluation]\nbenchmarks = ["a.jsonl"]\n')
    page = write_results(plan).read_text()
    assert "Unfinished" in page
    write_scores(plan, "pair.opd.s0", a=[1.0])
    page = write_results(plan).read_text()
    assert "OPD (1 of 2)" in page
    assert "the last column" not in page, "one benchmark has no mean"
    assert page.count(f">{plan.experiment.tables[0].title}</h") == 1, "a title stands once"


def test_other_problems_are_not_compared(finished):
    file = finished.files.scores("pair.cal_opd.s0")
    changed = json.loads(file.read_text())
    write_json(file, changed | {"sha256": {"a": "other", "b": "same"}})
    part = finished.experiment.tables[0]
    table = difference_table(finished, part, scored_arms(finished, part.arms))
    assert [row.cells[0] for row in table.rows] == ["Cal-OPD, λ = 1"]


@pytest.mark.parametrize(
    "changed",
    [
        "n = 4", "n = 2\nseed = 1", "n = 2\ntemperature = 1.0", "n = 2\nmax_tokens = 64", "n = 2\nproblems = 2",
        "n = 2\nmax_prompt_tokens = 512", 'n = 2\nengine = "torch"',
    ],
)  # fmt: skip
def test_scores_of_other_evaluation_settings_are_not_shown(finished, tmp_path, changed):
    benchmarks = '[evaluation]\nbenchmarks = ["a.jsonl", "b.jsonl"]\n'
    same = experiment(tmp_path, evaluation=f"{benchmarks}n = 2\nin_flight = 7\n")
    assert all(is_done(same, job) for job in same.jobs)
    assert len(scored_arms(same, ["opd", "lambda"])) == 5
    other = experiment(tmp_path, evaluation=f"{benchmarks}{changed}\n")
    assert not any(is_done(other, job) for job in other.jobs)
    assert scored_arms(other, ["opd", "lambda"]) == []
    page = write_results(other).read_text()
    assert "Unfinished" in page
    assert "Avg@" not in page


def test_scores_of_changed_problems_are_not_shown(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"id": "1", "problem": "1 + 1?", "answer": "2"}\n')
    plan = experiment(tmp_path, evaluation=f'[evaluation]\nbenchmarks = ["{file}"]\n')
    write_scores(plan, "pair.student", a=[1.0])
    saved = json.loads(plan.files.scores("pair.student").read_text())
    write_json(plan.files.scores("pair.student"), saved | {"sha256": {"a": load_benchmark(str(file)).sha256}})
    assert [row.label for row in scored_arms(plan, [])] == ["Student"]
    file.write_text('{"id": "1", "problem": "1 + 2?", "answer": "3"}\n')
    assert scored_arms(plan, []) == []


def test_scores_of_another_baseline_are_not_shown(finished, tmp_path):
    recipe = tmp_path / "other.toml"
    recipe.write_text(f'extends = "{ROOT / "configs" / "demo.toml"}"\n[teacher]\npath = "another/teacher"\n')
    evaluation = '[evaluation]\nbenchmarks = ["a.jsonl", "b.jsonl"]\nn = 2\n'
    other = experiment(tmp_path, recipe=str(recipe.with_suffix("")), evaluation=evaluation)
    assert {job.role: is_done(other, job) for job in other.baselines} == {"student": True, "teacher": False}
    assert scored_arms(finished, [])[-1].label == "Teacher"
    assert scored_arms(other, [])[-1].label == "Student"


def test_figures_are_drawn_and_exported(finished):
    page = write_results(finished).read_text()
    out = finished.files.results("mine")
    sweep = read_csv(out / "lambda-accuracy.csv")
    assert [(float(row["relaxation"]), float(row["value"])) for row in sweep] == [(1, 0.55), (5, pytest.approx(0.7))]
    assert float(sweep[1]["high"]) - float(sweep[1]["value"]) == pytest.approx(np.std([0.6, 0.8], ddof=1))
    retained = read_csv(out / "training-retained_ratio.csv")
    assert {row["series"] for row in retained} == {"OPD", "Cal-OPD, λ = 1", "Cal-OPD, λ = 5"}
    for name in ("lambda-accuracy", "lambda-retained_ratio", "training-retained_ratio", "training-grad_norm"):
        ElementTree.parse(out / f"{name}.svg")
        assert "\\begin{axis}" in (out / f"{name}.tex").read_text()
    (minutes,) = {row["minutes_per_step"] for row in read_csv(out / "efficiency.csv")}
    assert float(minutes) == pytest.approx(2.5), "the first step does not count"
    assert page.count('class="plot"') == 4
    assert ", the paper" not in page


def test_report_compare_makes_bands_of_seeds(finished, tmp_path):
    groups = group_runs(RunDir(job.config.run_dir.path) for job in finished.runs)
    assert [group.label for group in groups] == [
        "opd",
        "cal_opd, relaxation 1",
        "cal_opd, relaxation 5",
    ]
    assert [len(group.records) for group in groups] == [2, 2, 2]
    page = write_comparison_of_runs(groups, tmp_path / "compare").read_text()
    assert "<span>cal_opd, probes eval, relaxation 1 <b>" in page
    figures = [json.loads(text) for text in re.findall(r'application/json">(.*?)</script>', page, flags=re.S)]
    bands = [trace for trace in figures[0]["data"] if trace.get("fill") == "toself"]
    assert len(bands) == 3
    width = np.std([1.0, 1.1], ddof=1)
    assert bands[0]["y"][0] == pytest.approx(1.05 + width)
    assert bands[0]["y"][-1] == pytest.approx(1.05 - width)


def test_emulated_runs_are_named_so(finished, tmp_path):
    job = next(job for job in finished.runs if job.name == "pair.opd.s0")
    engines = [f'{role}.engine="emulated"' for role in ("teacher", "rollout", "learner")]
    settings = [*engines, 'emulation.gpu="h20"', "evaluation.problems=0", "method.name=opd"]
    emulated = load_config(ROOT / "configs" / "demo.toml", settings, environ={})
    folder = RunDir(tmp_path / "emulated")
    ensure_run_id(folder)
    write_text(folder.config, emulated.to_toml())
    write_lines(folder.metrics, list(read_lines(job.config.run_dir.metrics)))
    groups = group_runs([job.config.run_dir, folder])
    assert [group.label.endswith(", emulated") for group in groups] == [False, True]
    page = write_comparison_of_runs(groups, tmp_path / "compare").read_text()
    assert escape(EMULATED_NOTE) in page
    assert "The times of emulated runs are of a plan" in page
    assert EMULATED_NOTE not in write_comparison_of_runs(groups[:1], tmp_path / "real").read_text()
    rows = read_csv(tmp_path / "compare" / "efficiency.csv")
    assert ["emulated" in row["method"] for row in rows] == [False, True]


def test_the_papers_numbers_stand_beside_its_settings_only(tmp_path):
    papers = experiment(
        tmp_path, recipe="qwen3-4b-to-1.7b", evaluation='[evaluation]\nbenchmarks = ["math500"]\n', seeds="[0]"
    )
    write_scores(papers, "pair.cal_opd.s0", MATH500=[1.0] * 500)
    write_scores(papers, "pair.cal_opd.relaxation-1.s0", MATH500=[1.0] * 500)
    rows = {row.label: row.paper for row in scored_arms(papers, ["lambda"])}
    assert rows["Cal-OPD, λ = 5"]["MATH500"] == pytest.approx(0.908)
    assert rows["Cal-OPD, λ = 1"] == {}
    assert "mean" not in rows["Cal-OPD, λ = 5"], "the paper's mean is over six benchmarks"
    shorter = experiment(
        tmp_path, recipe="qwen3-4b-to-1.7b", evaluation='[evaluation]\nbenchmarks = ["math500"]\nn = 4\n', seeds="[0]"
    )
    for name in ("pair.cal_opd.s0", "pair.cal_opd.relaxation-1.s0"):
        write_scores(shorter, name, MATH500=[1.0] * 500)
    assert len(scored_arms(shorter, ["lambda"])) == 2
    assert all(row.paper == {} for row in scored_arms(shorter, ["lambda"]))


def test_the_papers_mean_stands_beside_the_mean_of_its_six_benchmarks_only(tmp_path):
    for count in (2, 6):
        names = [name.lower() for name in BENCHMARKS[:count]]
        evaluation = f"[evaluation]\nbenchmarks = {json.dumps(names)}\n"
        plan = experiment(tmp_path, recipe="qwen3-4b-to-1.7b", evaluation=evaluation, seeds="[0]")
        for name in ("pair.student", "pair.cal_opd.s0"):
            write_scores(plan, name, **{name: [1.0] * size for name, size in list(BENCHMARK_SIZES.items())[:count]})
        rows = {row.label: row.paper for row in scored_arms(plan, ["lambda"])}
        assert set(rows) == {"Student", "Cal-OPD, λ = 5"}
        assert all(("mean" in paper) == (count == 6) and "AMC23" in paper for paper in rows.values())


def test_another_number_of_problems_is_said_plainly(tmp_path):
    plan = experiment(tmp_path, evaluation='[evaluation]\nbenchmarks = ["aime26"]\n')
    scores = ModelScores({"AIME26": [0.0] * 29}, {}, {}, {}, {})
    write_scores(plan, "pair.student", **scores.scores)
    rows = scored_arms(plan, [])
    assert size_notes(rows) == ["AIME26 has 29 problems here, 30 in the paper: the numbers do not compare."]
    write_scores(plan, "pair.student", AIME26=[0.0] * 30)
    assert size_notes(scored_arms(plan, [])) == []


def test_the_figures_have_only_runs_that_have_ended(finished):
    """A run in progress would shift the mean of the first steps, and pass for a seed."""
    done = finished.runs[0]
    assert [len(group.records) for group in run_groups(finished, ["opd"])] == [2]
    done.config.run_dir.summary.unlink()
    assert [len(group.records) for group in run_groups(finished, ["opd"])] == [1]
