"""`calopd experiment run`: it resumes after a kill; a seed gives the same run again, another seed does not."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from calopd.config import load_config
from calopd.experiments.experiment_file import load_experiment
from calopd.experiments.job_execution import is_done
from calopd.experiments.planned_runs import plan_experiment
from calopd.rundir.files import read_lines
from tests.services.processes import ROOT

pytestmark = pytest.mark.slow


def start(file: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "calopd.cli", "experiment", "run", str(file)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(file: Path) -> str:
    process = start(file)
    out, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, out
    return out


def numbers(file: Path) -> list[dict]:
    """The metrics of a run without its times."""
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in read_lines(file)]


def write(tiny, folder: Path) -> Path:
    file = folder / "mine.toml"
    recipe = tiny.write_config("experiment")
    # One request at a time: batches, which change the last bits, are the same in every run.
    file.write_text(f"""
title = "Two seeds"
dir = "{folder / "out"}"
seeds = [0, 1]
set.run.deterministic = true
set.evaluation.problems = 0
set.rollout.max_in_flight = 1
set.learner.trajectories = 8
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
    file = write(tiny, tmp_path)
    plan = plan_experiment(file, load_experiment(file), environ={})
    student, first, second = plan.jobs
    assert [job.name for job in plan.jobs] == ["tiny.student", "tiny.cal_opd.s0", "tiny.cal_opd.s1"]
    process = start(file)
    deadline = time.monotonic() + 900
    while not read_lines(first.config.run_dir.metrics):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert is_done(plan, student)
    assert not is_done(plan, first)
    sampled = plan.files.scores(student.name).stat().st_mtime_ns
    out = finish(file)
    assert "1 of 3 jobs done" in out
    assert "3 of 3 jobs done" in out
    assert plan.files.scores(student.name).stat().st_mtime_ns == sampled, "what was done is not done again"
    metrics = {job.name: job.config.run_dir.metrics for job in (first, second)}
    assert [row["step"] for row in read_lines(metrics[first.name])] == [0, 1]
    assert not first.config.run_dir.checkpoints.exists()
    assert load_config(first.config.run_dir.config, environ={}).run.seed == 0
    results = plan.files.results("mine")
    for name in ("experiment.html", "main.csv", "main.tex", "main-differences.csv", "training-entropy.svg"):
        assert "Cal-OPD" in (results / name).read_text(encoding="utf-8"), name

    seeds = [numbers(metrics[job.name]) for job in (first, second)]
    assert seeds[0] != seeds[1]
    assert seeds[0][0]["loss"] != seeds[1][0]["loss"]
    shutil.rmtree(second.config.run_dir.path)
    plan.files.scores(second.name).unlink()
    shutil.rmtree(plan.files.evaluation(second.name))
    finish(file)
    assert numbers(metrics[second.name]) == seeds[1], "the same seed gives the same run, bit for bit"
