"""Experiments are planned without running anything: which runs, in which order, at what cost."""

import re
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from calopd.core.errors import ConfigError
from calopd.core.methods import METHODS
from calopd.experiments.experiment_file import load_experiment
from calopd.experiments.plan_report import print_experiment
from calopd.experiments.planned_runs import ExperimentPlan, plan_experiment
from docs.generators.reproduce import CONTENT
from tests.services.processes import ROOT

PAPER = sorted((ROOT / "configs" / "paper").glob("*.toml"))
OTHERS = [ROOT / "configs" / "experiments" / "demo.toml", ROOT / "examples" / "smollm2" / "experiment.toml"]
RUNS = {
    "controls": 9, "dynamics": 6, "efficiency": 6, "lambda": 7, "learning-rate": 12, "main-table": 12, "probes": 5,
    "tsd-study": 0,
}  # fmt: skip


def planned(file: Path) -> ExperimentPlan:
    return plan_experiment(file, load_experiment(file), environ={})


def write(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(f'title = "Mine"\ndir = "{folder / "out"}"\n{text}')
    return file


def small(folder: Path, arms: str, more: str = "") -> Path:
    recipe = ROOT / "configs" / "demo.toml"
    return write(folder, f'{more}\n[recipes]\ndemo = "{recipe}"\n{arms}')


@pytest.mark.parametrize("file", [*PAPER, *OTHERS], ids=lambda file: file.stem)
def test_every_experiment_is_planned(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = planned(file)
    if file in PAPER:
        assert len(plan.runs) == RUNS[file.stem]
    seen: set[str] = set()
    for job in plan.jobs:
        assert seen.issuperset(job.needs), f"{job.name} comes before what it needs"
        assert job.name not in seen
        seen.add(job.name)
    console = Console(width=150, record=True)
    print_experiment(console, plan, price=2.0)
    text = console.export_text()
    assert all(job.name in text for job in plan.jobs)
    assert "Total:" in text
    if file in PAPER:
        assert "no estimate" not in text.lower()
        assert re.search(r"Total: [\d,.]+ hours on one host, [\d,]+ GPU hours.*, [\d,]+ at 2 per GPU hour", text)


def test_all_paper_experiments_have_a_test_and_a_row_in_the_docs():
    assert {file.stem for file in PAPER} == set(RUNS) == set(CONTENT)


def test_experiments_share_the_runs_with_equal_settings():
    names = {file.stem: {job.name for job in planned(file).runs} for file in PAPER}
    assert names["dynamics"] <= names["main-table"] | names["probes"]
    for other in ("probes", "lambda", "controls", "learning-rate"):
        assert "small.cal_opd.s0" in names["main-table"] & names[other]
    by_name: dict[str, dict] = {}
    for file in PAPER:
        plan = planned(file)
        if str(plan.experiment.dir) == "runs/paper":
            for job in plan.runs:
                settings = tomllib.loads(job.config.to_toml())
                assert by_name.setdefault(job.name, settings) == settings


def test_methods_have_their_recipes():
    runs = {job.name: job.config for job in planned(ROOT / "configs" / "paper" / "main-table.toml").runs}
    assert {config.method.name for config in runs.values()} == {
        "opd", "exopd", "eopd", "uni_opd", "privileged_opd", "cal_opd"
    }  # fmt: skip
    assert runs["small.exopd.s0"].learner.lora_rank == 64
    grouped = runs["middle.uni_opd.s0"].learner
    assert (grouped.trajectories, grouped.samples) == (256, 16)
    assert all(str(config.data.train) == "data/dapo-math-solved.jsonl" for config in runs.values())


def test_a_control_follows_the_cal_opd_run_of_its_seed(tmp_path):
    arms = '[arms.advantage_sync]\nset.method.name = "advantage_sync"\n[arms.cal_opd]\nset.method.name = "cal_opd"\n'
    plan = planned(small(tmp_path, arms, "seeds = [3, 5]"))
    jobs = {job.name: job for job in plan.runs}
    assert list(jobs) == [
        "demo.cal_opd.s3", "demo.advantage_sync.s3", "demo.cal_opd.s5", "demo.advantage_sync.s5"
    ]  # fmt: skip
    for seed in (3, 5):
        control = jobs[f"demo.advantage_sync.s{seed}"]
        assert control.needs == (f"demo.cal_opd.s{seed}",)
        followed = control.config.model_dump(mode="json")["method"]["recorded_run"]
        assert Path(followed) == jobs[f"demo.cal_opd.s{seed}"].config.run_dir.path
        assert control.config.run.seed == seed


def test_a_grid_has_all_combinations_and_equal_runs_are_one(tmp_path):
    arms = """
[arms.cal_opd]
set.method.name = "cal_opd"
[arms.sweep]
label = "λ {relaxation}, lr {learning_rate}"
grid."method.relaxation" = [5, 1.5]
grid."learner.learning_rate" = [4e-4, 1e-3]
"""
    plan = planned(small(tmp_path, arms))
    assert [one.label for one in plan.variations["sweep"]] == [
        "λ 5, lr 0.0004", "λ 5, lr 0.001", "λ 1.5, lr 0.0004", "λ 1.5, lr 0.001"
    ]  # fmt: skip
    assert [job.name for job in plan.runs] == [
        "demo.cal_opd.s0", "demo.cal_opd.learning_rate-0.001.s0", "demo.cal_opd.relaxation-1.5.s0",
        "demo.cal_opd.learning_rate-0.001.relaxation-1.5.s0",
    ]  # fmt: skip
    first = plan.variations["sweep"][0]
    assert plan.run("demo", first, 0).name == "demo.cal_opd.s0"


SWEEP = (
    "[arms.a]\ngrid.'method.probes' = [['eval'], ['sol']]\ngrid.'method.relaxation' = [0, 1]\n"
    "[[figures]]\nkey='f'\ntitle='F'\narms=['a']\nkind='sweep'\n"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[arms.a]\nsett.method.name = 'opd'", "unknown key arms.a.sett"),
        ("[arms.a]\n[discrepancy]\nproblems = 20", "discrepancy.problems: expected a path in quotes .given: 20"),
        ("[arms.a]\n[discrepancy]\nproblems = 'a.jsonl'", "discrepancy.rollouts is missing"),
        ("[arms.a]\nset.method.name = 'odp'", "unknown method 'odp'"),
        ("[arms.a]\n[[tables]]\nkey='t'\ntitle='T'\narms=['b']", "t.arms: unknown name 'b'"),
        ("[arms.a]\n[[figures]]\nkey='f'\ntitle='F'\narms=['a']\nmetrics=['entropi']", "did you mean .*entropy"),
        ("[arms.a]\n[[figures]]\nkey='f'\ntitle='F'\narms=['a']\nkind='sweep'\nx='method.relaxation'", "f.x is"),
        (f"{SWEEP}x='method.probes'", "a sweep needs numbers above 0"),
        (f"{SWEEP}x='method.relaxation'", "with 0: a sweep needs numbers above 0"),
        ("[arms.a]\n[arms.b]\n[[tables]]\nkey='t'\ntitle='T'\narms=['a']\nagainst='b'", "t.against: unknown name 'b'"),
        ("[arms.token_sync]\nset.method.name = 'token_sync'", "set `follows` to an arm of the file"),
        ("[arms.a]\nlabel = 'x'\n[arms.b]\nlabel = 'x'", "have the label 'x' twice"),
        ("[arms.a]\nlabel = 'x'\ngrid.'method.relaxation' = [1, 2]", "have the label 'x' twice"),
    ],
)
def test_mistakes_are_explained(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        planned(small(tmp_path, text))


def test_the_untrained_student_is_measured_with_the_settings_of_all_runs(tmp_path):
    common = "set.rollout.max_tokens = 33\nset.rollout.engine = 'torch'"
    discrepancy = "[discrepancy]\nproblems = 'a.jsonl'\nrollouts = 1"
    jobs = planned(small(tmp_path, f"{discrepancy}\n[arms.opd]\nset.method.name = 'opd'", common)).jobs
    assert {type(job).__name__ for job in jobs} == {"BaselineJob", "RunJob"}
    assert {(job.config.rollout.max_tokens, job.config.rollout.engine) for job in jobs} == {(33, "torch")}


def test_a_plan_without_an_estimate_says_how_to_get_one(tmp_path):
    console = Console(width=150, record=True)
    print_experiment(console, planned(small(tmp_path, "[arms.opd]\nset.method.name = 'opd'")))
    assert "No estimate: set resources.gpu and the GPUs of all roles in the recipe, or [estimate] in the file." in (
        console.export_text()
    )


def test_every_method_can_be_an_arm(tmp_path):
    arms = "".join(f'[arms.{name}]\nset.method.name = "{name}"\n' for name in METHODS)
    assert {job.config.method.name for job in planned(small(tmp_path, arms)).runs} == set(METHODS)
