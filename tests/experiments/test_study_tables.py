"""The studies of an experiment: their tables, the page that compares them, and the paper's numbers."""

import csv
import io
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from calopd.config import Config, load_config
from calopd.core.contexts import BASE, CONTEXTS
from calopd.core.errors import ConfigError
from calopd.core.paper_study import STUDIES, paper_study
from calopd.experiments import job_execution
from calopd.experiments.experiment_file import load_experiment
from calopd.experiments.experiment_loop import ExperimentLoop
from calopd.experiments.experiment_page import write_results
from calopd.experiments.job_execution import is_done
from calopd.experiments.planned_runs import ExperimentPlan, plan_experiment
from calopd.experiments.preflight import require_experiment
from calopd.experiments.study_tables import measured_studies
from calopd.rundir.files import write_text
from calopd.study.collection import contexts_of
from calopd.study.shards import ScoredRollout, Study, StudyRollout
from tests.services.processes import ROOT

NINE = [BASE, *CONTEXTS]
WORDS = ["maybe", "7", "\\", "so", "+", "x"]


def collect(config: Config, directory: Path, goal: object, *, chosen: str | None, recorded: Path | None) -> None:
    """Stands for two models: one response of random tokens and scores."""
    contexts, draw = contexts_of(config, chosen), np.random.default_rng(len(directory.name))
    study, length = Study(directory), 600
    study.begin(
        student=config.student.path, teacher=config.teacher.path, contexts=contexts, **asdict(config.rollout.sampling),
        recorded=None if recorded is None else str(recorded),
    )  # fmt: skip
    write_text(study.files.config, config.to_toml())
    study.write_tokens(WORDS)
    base = -draw.exponential(1, length)
    scores = [base, *(base + draw.normal(0, 0.1, length) for _ in contexts[1:])]
    ids = draw.integers(0, len(WORDS), length).astype(np.int32)
    scored = ScoredRollout(StudyRollout(0, "p", length), ids, base.astype(np.float32), np.array(scores, np.float32))
    study.write_shard(0, [scored])


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExperimentPlan:
    """The paper's two studies, and one whose student samples otherwise."""
    monkeypatch.setattr(job_execution, "collect", collect)
    monkeypatch.setattr("calopd.experiments.experiment_loop.require_experiment", lambda plan: None)
    studies = (ROOT / "configs" / "paper" / "tsd-study.toml").read_text()
    studies = studies.replace("../", f"{ROOT}/configs/").replace("runs/paper-study", str(tmp_path / "out"))
    other = (
        '[studies.other]\nrecipe = "small"\nrollouts = 1\nset.teacher.path = "Qwen/Qwen3-8B"\nset.rollout.top_p = 0.9\n'
    )
    file = tmp_path / "tsd-study.toml"
    file.write_text(studies + other)
    plan = plan_experiment(file, load_experiment(file), environ={})
    ExperimentLoop(plan, Console(file=io.StringIO())).run()
    return plan


def read_csv(file: Path) -> list[dict[str, str]]:
    with file.open() as lines:
        return list(csv.DictReader(lines))


def test_the_studies_stand_side_by_side(finished):
    page = finished.files.page(finished.name).read_text()
    assert 'href="../../studies/qwen3-4b-thinking/compare.html">beside qwen3-8b<' in page
    compared = finished.files.study("qwen3-4b-thinking") / "compare.html"
    assert "qwen3-8b against qwen3-4b-thinking" in compared.read_text()
    assert not (finished.files.study("other") / "compare.html").exists(), "it has rollouts of its own"
    out = finished.files.results(finished.name)
    tables = {name: read_csv(out / f"study-{name}.csv") for name in ("prevalence", "retention", "consistency")}
    assert {name: len(rows) for name, rows in tables.items()} == {
        "prevalence": 3 * 3 * 12, "retention": 3 * 3 * 12, "consistency": 3 * 3 * 12,
    }  # fmt: skip
    first = tables["prevalence"][0]
    assert (first["study"], first["teacher"], first["tau"], first["measure"]) == (
        "qwen3-8b",
        "Qwen3-8B",
        "0.01",
        "inst+",
    )
    moved = job_execution.analyze(finished.files.study("qwen3-8b"))
    assert float(first["value"]) == moved["prevalence"]["0.01"]["contexts"]["inst+"]["share"]
    sdr = next(row for row in tables["consistency"] if row["measure"] == "sol SDR")
    assert float(sdr["value"]) == moved["consistency"]["0.01"]["sol"]["sdr"]
    latex = (out / "study-consistency.tex").read_text()
    assert "\\textit{$\\tau$ = 0.05}" in latex
    assert {row["tokens"] for row in read_csv(out / "study-rollouts.csv") if "paper" not in row["study"]} == {"600"}


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        ("rollouts = 1", "rollouts = 2", ""),
        ("set.rollout.top_p = 0.9", "set.rollout.top_p = 0.8", "has top_p = 0.9, but 0.8 was given"),
        ("set.rollout.top_p = 0.9", 'set.rollout.top_p = 0.9\ncontexts = "eval"', "has contexts = "),
    ],
)
def test_a_study_of_a_changed_file_is_collected_further_or_refused(finished, tmp_path, old, new, refused):
    text = (tmp_path / "tsd-study.toml").read_text()
    assert old in text
    file = tmp_path / "changed.toml"
    file.write_text(text.replace(old, new))
    plan = plan_experiment(file, load_experiment(file), environ={})
    assert [is_done(finished, job) for job in finished.jobs] == [True] * 3
    assert [is_done(plan, job) for job in plan.jobs] == [True, True, False]
    assert {study.name for study in measured_studies(plan)} == {"qwen3-8b", "qwen3-4b-thinking"}
    if refused:
        with pytest.raises(ConfigError, match=refused):
            require_experiment(plan)


def test_the_papers_numbers_stand_beside_its_studies_only(finished):
    page, out = finished.files.page(finished.name).read_text(), finished.files.results(finished.name)
    assert "qwen3-8b, the paper" in page
    assert "qwen3-4b-thinking, the paper" in page
    assert "other, the paper" not in page, "its student samples otherwise"
    assert "≥ 94.3" in page
    found = {
        (row["study"], row["tau"], row["measure"]): row["paper"] or f">= {row['paper_at_least']}"
        for name in ("prevalence", "retention", "consistency")
        for row in read_csv(out / f"study-{name}.csv")
        if row["paper"] or row["paper_at_least"]
    }
    assert len(found) == 16 + 4 + 3 + 2 + 3, "every number of the paper has a measure of this name"
    assert found["qwen3-8b", "0.01", "inst union"] == "0.298"
    assert found["qwen3-8b", "0.1", "eval → sol"] == ">= 0.934"
    assert found["qwen3-4b-thinking", "0.1", "ans SDR"] == "0.796"
    forms = [row for row in read_csv(out / "study-forms.csv") if row["study"] == "qwen3-8b, the paper"]
    assert " \\textbackslash{} " in (out / "study-forms.tex").read_text()
    assert [row["form"] for row in forms] == ["maybe", "however", "therefore", "}{", "###", "0"]


def test_a_study_under_way_is_not_shown(finished):
    (finished.files.study("qwen3-4b-thinking") / "tsd.html").unlink()
    (finished.files.study("other") / "config.toml").unlink()
    page = write_results(finished).read_text()
    assert "Unfinished" in page
    assert {row["study"] for row in read_csv(finished.files.results(finished.name) / "study-prevalence.csv")} == {
        "qwen3-8b", "other",
    }  # fmt: skip
    assert "qwen3-8b, the paper" in page


def settings(*given: str) -> dict:
    wanted = ["teacher.path=Qwen/Qwen3-8B", "teacher.engine=vllm", *given]
    return load_config(ROOT / "configs" / "qwen3-4b-to-1.7b.toml", wanted, environ={}).model_dump(mode="json")


@pytest.mark.parametrize(
    "change",
    [
        "student.path=Qwen/Qwen3-4B", "teacher.path=Qwen/Qwen3-14B", "teacher.quantization=fp8",
        "rollout.max_tokens=8192", "rollout.temperature=0.6", "rollout.top_p=0.9", "method.placement=before",
        'method.contexts={"inst+"="Be brief."}', "data.train=examples/demo/train.jsonl",
    ],
)  # fmt: skip
def test_a_study_with_another_setting_has_no_numbers_of_the_paper(change):
    assert paper_study(settings(), NINE) is STUDIES["Qwen3-8B"]
    assert paper_study(settings(change), NINE) is None


def test_contexts_and_rollouts_are_the_papers_too():
    assert paper_study(settings(), NINE[:-2]) is None
    assert paper_study(settings(), [*NINE, "hint"]) is None
    assert paper_study(settings("rollout.top_p=0.9"), NINE, sampled=settings()) is STUDIES["Qwen3-8B"]
    assert paper_study(settings(), NINE, sampled=settings("student.path=Qwen/Qwen3-4B")) is None
