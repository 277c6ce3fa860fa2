"""The loop of an experiment: jobs that fail, jobs that need them, and jobs of other hosts."""

import io
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from calopd.config import Config, load_config
from calopd.core.errors import CalopdError, ConfigError
from calopd.experiments import experiment_loop, job_execution
from calopd.experiments.experiment_file import EvaluationPart, load_experiment
from calopd.experiments.experiment_loop import ExperimentLoop
from calopd.experiments.host_claims import claimed
from calopd.experiments.job_execution import is_done
from calopd.experiments.planned_runs import ExperimentJob, ExperimentPlan, plan_experiment
from calopd.rundir.files import write_json, write_text
from tests.experiments.finished_runs import finish_run
from tests.services.processes import ROOT

EVALUATED = EvaluationPart(benchmarks=("a.jsonl",))
CAL_OPD, OPD, CONTROL = "pair.cal_opd.s0", "pair.opd.s0", "pair.advantage_sync.s0"


class Trainer:
    """Stands for training: leaves the records of a finished run, or fails."""

    def __init__(self) -> None:
        self.trained: list[str] = []
        self.failing: set[str] = set()

    def __call__(self, config: Config, **_: object) -> None:
        if config.run.name in self.failing:
            raise ConfigError("the GPU is gone")
        self.trained.append(config.run.name)
        finish_run(config)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    trainer = Trainer()
    monkeypatch.setattr(job_execution, "train", trainer)
    return trainer


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExperimentPlan:
    monkeypatch.chdir(ROOT)
    file = tmp_path / "mine.toml"
    arms = "".join(f'[arms.{name}]\nset.method.name = "{name}"\n' for name in ("advantage_sync", "cal_opd", "opd"))
    recipes = f'[recipes]\npair = "{ROOT / "configs" / "demo.toml"}"\n'
    file.write_text(f'title = "Mine"\ndir = "{tmp_path / "out"}"\n{recipes}{arms}')
    return plan_experiment(file, load_experiment(file), environ={})


def run(plan: ExperimentPlan) -> str:
    shown = io.StringIO()
    ExperimentLoop(plan, Console(file=shown, width=200)).run()
    return shown.getvalue()


def done(plan: ExperimentPlan) -> set[str]:
    return {job.name for job in plan.jobs if is_done(plan, job)}


def test_a_job_that_fails_stops_only_those_that_need_it(plan, trainer):
    trainer.failing = {CAL_OPD}
    with pytest.raises(CalopdError, match=rf"1 jobs failed; repeat the command.*\n  {CAL_OPD}: the GPU is gone"):
        run(plan)
    assert done(plan) == {OPD}
    page = plan.files.page(plan.name).read_text()
    assert "1 of 3" in page
    assert "Unfinished" in page
    trainer.failing = set()
    assert "3 of 3 jobs done" in run(plan)
    assert trainer.trained == [OPD, CAL_OPD, CONTROL], "the control waits for the run that it follows"
    run(plan)
    assert len(trainer.trained) == 3, "nothing is done twice"


def test_a_claim_is_held_once(tmp_path):
    file = tmp_path / "claims" / "job.lock"
    with claimed(file) as mine, claimed(file) as also:
        assert (mine, also) == (True, False)
    with claimed(file) as mine:
        assert mine, "the end of the block releases it"


def test_the_job_of_another_host_is_left_to_it(plan, trainer, monkeypatch):
    """Its control waits until the other host has finished, then it is done here."""
    other = ExitStack()
    assert other.enter_context(claimed(plan.files.claim(CAL_OPD)))
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        finish_run(next(job.config for job in plan.runs if job.name == CAL_OPD))
        other.close()

    monkeypatch.setattr(experiment_loop.time, "sleep", wait)
    run(plan)
    assert trainer.trained == [OPD, CONTROL]
    assert waits == [experiment_loop.POLL_SECONDS]
    assert done(plan) == {OPD, CAL_OPD, CONTROL}


def test_a_folder_that_calopd_did_not_make_is_left_alone(plan, trainer):
    """Also one with a file of the same name as the configuration of a run."""
    for job, name in zip(plan.runs, ("thesis.tex", "config.toml", "notes.txt"), strict=True):
        job.config.run_dir.path.mkdir(parents=True)
        (job.config.run_dir.path / name).write_text(job.config.to_toml())
    with pytest.raises(CalopdError, match="not empty and not a run: set another `dir`"):
        run(plan)
    assert not trainer.trained
    kept = [file.name for job in plan.runs for file in job.config.run_dir.path.iterdir()]
    assert kept == ["thesis.tex", "config.toml", "notes.txt"]


def test_a_job_that_is_stopped_in_its_evaluation_leaves_no_checkpoints(plan, trainer, monkeypatch):
    def evaluate(plan: ExperimentPlan, job: ExperimentJob, console: Console) -> None:
        raise ConfigError("stopped")

    def train(config: Config, **_: object) -> None:
        finish_run(config)
        write_text(config.run_dir.checkpoint(3) / "weights", "many bytes")

    monkeypatch.setattr(job_execution, "train", train)
    monkeypatch.setattr(job_execution, "_evaluate", evaluate)
    evaluated = replace(plan, experiment=plan.experiment.model_copy(update={"evaluation": EVALUATED}))
    job = evaluated.runs[1]
    with pytest.raises(ConfigError, match="stopped"):
        job_execution.do_job(evaluated, job, Console(file=io.StringIO()))
    assert (job.config.run_dir.summary.exists(), job.config.run_dir.checkpoints.exists()) == (True, False)


def test_all_runs_have_the_same_problems(plan, trainer):
    """The file of problems has changed since the first run was trained."""
    finish_run(plan.runs[0].config)
    write_json(plan.runs[0].config.run_dir.problems, {"sha256": "of the file before", "problems": 7})
    with pytest.raises(CalopdError, match=r"has changed since the run .* began with 7 problems"):
        run(plan)
    assert not trainer.trained


@pytest.mark.parametrize(
    "change",
    [
        "learner.weight_decay=0.5", "learner.gradient_clip=0.5", "learner.warmup_steps=7", "learner.betas=[0.5, 0.5]",
        'rollout.dtype="bfloat16"', "learner.learning_rate=1.0", "run.steps=7", 'teacher.dtype="bfloat16"',
    ],
)  # fmt: skip
def test_a_run_of_other_settings_is_not_taken_for_one_of_the_experiment(plan, trainer, change):
    """Settings that may change when a run is resumed, and of which its results are another experiment's."""
    job = plan.runs[0]
    finish_run(load_config(ROOT / "configs" / "demo.toml", [*_named(job.config), change], environ={}))
    key = change.partition("=")[0]
    with pytest.raises(CalopdError, match=rf"has {key} = .*: set another `dir`, or remove the run"):
        run(plan)
    assert not trainer.trained


def test_settings_that_change_no_result_may_differ(plan, trainer):
    job = next(job for job in plan.runs if job.name == OPD)
    changes = ["learner.threads=1", "learner.micro_batch_tokens=2048", "rollout.max_in_flight=8"]
    finish_run(load_config(ROOT / "configs" / "demo.toml", [*_named(job.config), *changes], environ={}))
    run(plan)
    assert OPD not in trainer.trained


def _named(config: Config) -> list[str]:
    own = [f'run.name="{config.run.name}"', f'run.dir="{config.run.dir}"', f"run.seed={config.run.seed}"]
    return [*own, f'method.name="{config.method.name}"']


def test_a_run_that_is_trained_again_loses_its_old_results(plan, trainer):
    run(plan)
    old = [plan.files.scores(OPD), plan.files.evaluation(OPD) / "results.json"]
    old += [plan.files.discrepancy(OPD) / "discrepancy.json"]
    for file in old:
        write_text(file, "{}")
    kept = plan.files.scores(CAL_OPD)
    write_text(kept, "{}")
    shutil.rmtree(next(job.config.run_dir.path for job in plan.runs if job.name == OPD))
    run(plan)
    assert [file for file in old if file.exists()] == []
    assert kept.exists()
