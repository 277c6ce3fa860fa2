"""The loop of an experiment: jobs that fail, jobs that need them, and jobs of other hosts."""

import io
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from calopd.config import Config
from calopd.core.errors import CalopdError, ConfigError
from calopd.experiments import experiment_loop, job_execution
from calopd.experiments.experiment_file import load_experiment
from calopd.experiments.experiment_loop import ExperimentLoop
from calopd.experiments.host_claims import claimed
from calopd.experiments.job_execution import is_done
from calopd.experiments.planned_runs import ExperimentPlan, plan_experiment
from tests.experiments.finished_runs import finish_run
from tests.services.processes import ROOT

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
