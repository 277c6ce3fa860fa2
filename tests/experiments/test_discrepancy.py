"""The held-out discrepancy between teacher and student, against numpy."""

from pathlib import Path

import numpy as np
import pytest

from calopd.config import Config, load_config
from calopd.core.paper_results import STUDENT
from calopd.experiments import discrepancy
from calopd.experiments.discrepancy import measure_discrepancy, read_discrepancy, summarise_discrepancy
from calopd.experiments.experiment_file import DiscrepancyPart, Experiment
from calopd.experiments.planned_runs import BaselineJob, ExperimentPlan
from calopd.study.collection import Goal
from calopd.study.shards import ScoredRollout, Study, StudyRollout
from tests.services.processes import ROOT

CONTEXTS = ["c0", "eval+", "eval-"]
LENGTHS = (5, 40, 1, 23)


def scored(index: int, length: int) -> ScoredRollout:
    draw = np.random.default_rng(index)
    base = -draw.exponential(1, length).astype(np.float32)
    probes = base + draw.normal(0, 0.1, (2, length)).astype(np.float32)
    student = (base + draw.normal(0, 1, length)).astype(np.float32)
    rollout = StudyRollout(index, f"p{index}", length)
    return ScoredRollout(rollout, np.zeros(length, np.int32), student, np.stack([base, *probes]))


def write_study(directory: Path) -> Study:
    study = Study(directory)
    study.begin(contexts=CONTEXTS)
    parts = [scored(index, length) for index, length in enumerate(LENGTHS)]
    study.write_shard(0, parts[:3])
    study.write_shard(1, parts[3:])
    return study


def expected() -> dict[str, float]:
    parts = [scored(index, length) for index, length in enumerate(LENGTHS)]
    teacher = np.concatenate([part.teacher_logprobs for part in parts], 1).astype(np.float64)
    student = np.concatenate([part.student_logprobs for part in parts]).astype(np.float64)
    base, deviations = teacher[0], teacher[1:] - teacher[0]
    lower = base - 5 * np.maximum(0, -deviations.min(0))
    upper = base + 5 * np.maximum(0, deviations.max(0))
    kept = np.maximum(lower - student, 0) - np.maximum(student - upper, 0)
    per_response = [np.abs(part.teacher_logprobs[0] - part.student_logprobs).mean() for part in parts]
    return {
        "tokens": len(student),
        "responses": len(parts),
        "mean_length": np.mean(LENGTHS),
        "mean_absolute": np.abs(base - student).mean(),
        "standard_error": np.std(per_response, ddof=1) / np.sqrt(len(parts)),
        "mean_log_ratio": (student - base).mean(),
        "retained": np.abs(kept).sum() / np.abs(base - student).sum(),
    }


def test_the_summary_is_that_of_numpy(tmp_path):
    found = summarise_discrepancy(write_study(tmp_path / "study"))
    assert found == pytest.approx(expected(), rel=1e-5)
    assert 0 < found["retained"] < 1


def test_all_students_answer_the_same_held_out_problems(tmp_path, monkeypatch):
    asked: list[tuple[Config, Goal, str | None]] = []

    def collect(config: Config, directory: Path, goal: Goal, *, chosen: str | None, recorded: Path | None) -> None:
        asked.append((config, goal, chosen))
        assert recorded is None
        write_study(directory)

    monkeypatch.setattr(discrepancy, "collect", collect)
    config = load_config(ROOT / "configs" / "demo.toml", ["run.seed=7"], environ={})
    part = DiscrepancyPart(problems=Path("heldout.jsonl"), rollouts=4, probes="sol")
    measure_discrepancy(config, "trained", part, tmp_path / "out")
    ((given, goal, chosen),) = asked
    assert (given.student.path, given.teacher.path) == ("trained", config.teacher.path)
    assert (given.data.train, given.data.heldout) == (Path("heldout.jsonl"), None)
    assert (given.run.seed, given.evaluation.problems, goal.rollouts, chosen) == (0, 0, 4, "sol")


def test_a_discrepancy_of_other_settings_is_measured_again(tmp_path, monkeypatch):
    collected = []

    def collect(config: Config, directory: Path, *_: object, **__: object) -> None:
        collected.append(config.data.train)
        assert not directory.exists()
        write_study(directory)

    monkeypatch.setattr(discrepancy, "collect", collect)
    heldout, other = tmp_path / "heldout.jsonl", tmp_path / "other.jsonl"
    heldout.write_text("before")
    for problems, content, teacher in (
        (heldout, "before", "first"), (other, "before", "first"), (other, "after", "first"), (other, "after", "second"),
    ):  # fmt: skip
        problems.write_text(content)
        config = load_config(ROOT / "configs" / "demo.toml", [f"teacher.path={teacher}"], environ={})
        part = DiscrepancyPart(problems=problems, rollouts=4)
        plan = ExperimentPlan("mine", Experiment(title="Mine", dir=tmp_path, recipes={}, discrepancy=part), [])
        student, unmeasured = (BaselineJob(name=n, pair="p", role=STUDENT, config=config) for n in ("p.student", "p.x"))
        assert read_discrepancy(plan, student) is None
        measure_discrepancy(config, "student", part, plan.files.discrepancy(student.name))
        assert read_discrepancy(plan, student) == pytest.approx(expected(), rel=1e-5)
        assert read_discrepancy(plan, unmeasured) is None
    assert collected == [heldout, other, other, other]
