"""`calopd experiment run`: it resumes after a kill; a seed gives the same run again, another seed does not."""

import shutil
import subprocess
from pathlib import Path

import pytest

from calopd.config import load_config
from calopd.experiments.experiment_file import load_experiment
from calopd.experiments.job_execution import is_done
from calopd.experiments.planned_runs import plan_experiment
from calopd.rundir.files import read_lines
from tests.e2e.runs import finish, start_command, wait_for_lines

pytestmark = pytest.mark.slow

# Enough that a run is killed before its end, however late the test notices the first step.
STEPS = 6


def start(file: Path) -> "subprocess.Popen[str]":
    return start_command("experiment", "run", str(file))


def numbers(file: Path) -> list[dict]:
    """The metrics of a run without its times."""
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in read_lines(file)]


def write(tiny, folder: Path) -> Path:
    file = folder / "mine.toml"
    recipe = tiny.write_config("experiment", steps=STEPS)
    # One request at a time: batches, which change the last bits, are the same in every run.
    file.write_text(f"""
title = "Two seeds"
dir = "{folder / "out"}"
seeds = [0, 1]
set.run.deterministic = true
set.evaluation.problems = 0
set.rollout.max_in_flight = 1
set.learner.trajectories = 8
set.learner.checkpoint_every = {STEPS}
[recipes]
tiny = "{recipe}"
[evaluation]
benchmarks = ["{tiny.heldout}"]
problems = 4
n = 1
max_tokens = 16
max_prompt_tokens = 256
engine = "torch"
baselines = ["student"]
[arms.cal_opd]
label = "Cal-OPD"
[[tables]]
key = "main"
title = "Accuracy"
arms = ["cal_opd"]
[[figures]]
key = "training"
title = "Training"
arms = ["cal_opd"]
""")
    return file


def test_a_killed_experiment_resumes_and_seeds_differ(tiny, tmp_path):
    """Killed in the second run, before a checkpoint, with its queue lost: the resumed run repeats its steps."""
    file = write(tiny, tmp_path)
    plan = plan_experiment(file, load_experiment(file), environ={})
    student, first, second = plan.jobs
    assert [job.name for job in plan.jobs] == ["tiny.student", "tiny.cal_opd.s0", "tiny.cal_opd.s1"]
    process = start(file)
    wait_for_lines(second.config, 1, process)
    process.kill()
    process.communicate()
    killed = numbers(second.config.run_dir.metrics)
    assert 0 < len(killed) < STEPS
    assert [is_done(plan, job) for job in plan.jobs] == [True, True, False]
    shutil.rmtree(second.config.run_dir.redis)
    sampled = [plan.files.scores(job.name).stat().st_mtime_ns for job in (student, first)]

    out = finish(start(file))
    assert "2 of 3 jobs done" in out
    assert "3 of 3 jobs done" in out
    assert [plan.files.scores(job.name).stat().st_mtime_ns for job in (student, first)] == sampled, "not done again"
    assert not second.config.run_dir.checkpoints.exists()
    assert load_config(second.config.run_dir.config, environ={}).run.seed == 1
    results = plan.files.results("mine")
    for name in ("experiment.html", "main.csv", "main.tex", "main-differences.csv", "training-entropy.svg"):
        assert "Cal-OPD" in (results / name).read_text(encoding="utf-8"), name

    seeds = [numbers(job.config.run_dir.metrics) for job in (first, second)]
    assert [[row["step"] for row in rows] for rows in seeds] == [list(range(STEPS))] * 2
    assert seeds[0][0]["loss"] != seeds[1][0]["loss"]
    assert seeds[1][: len(killed)] == killed, "the same seed gives the same steps, bit for bit"
