"""Every shipped recipe: counted, equal to the formula within 10 %, and with 10 % to spare on its GPU."""

import json

import pytest

from benchmarks.memory import RESULTS, TOLERANCE, first_of_each_role, formula_row, recipes
from calopd.experiments.experiment_file import load_experiment
from calopd.experiments.planned_runs import plan_experiment
from calopd.planning import SPARE, role_fits
from tests.services.processes import ROOT

RECIPES = recipes()
PAPER = sorted((ROOT / "configs" / "paper").glob("*.toml"))


def test_all_recipes_for_gpus_are_in_the_table():
    assert {"single-gpu", "single-gpu-80gb", "qwen3-4b-to-1.7b", "qwen3-30b-to-4b", "qwen3-30b-to-8b"} == set(RECIPES)
    assert set(json.loads(RESULTS.read_text())) == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_every_process_fits_its_gpu_with_room_to_spare(name):
    fits = role_fits(RECIPES[name])
    assert {fit.role for fit in fits} == {"teacher", "rollout", "learner"}
    for fit in fits:
        assert fit.fits, str(fit)
        assert fit.spare >= SPARE, f"{fit}, only {fit.spare:.1%} to spare"


@pytest.mark.parametrize("name", RECIPES)
def test_the_committed_table_is_that_of_the_recipe(name):
    committed = json.loads(RESULTS.read_text())[name]
    for fit in first_of_each_role(RECIPES[name]):
        row = committed[fit.role]
        expected = formula_row(RECIPES[name], fit)
        assert {key: row[key] for key in expected} == expected, "the table is outdated: run make bench-memory"
        assert expected["formula_gib"] == pytest.approx(row["counted_gib"], rel=TOLERANCE)


@pytest.mark.parametrize("file", PAPER, ids=lambda file: file.stem)
def test_every_job_of_the_papers_experiments_fits_its_gpus_with_room_to_spare(file):
    """Methods differ in what they keep: a frozen student, adapters, the teacher's distribution."""
    jobs = plan_experiment(file, load_experiment(file), environ={}).jobs
    assert jobs
    for job in jobs:
        for fit in role_fits(job.config):
            assert fit.fits, f"{job.name}: {fit}"
            assert fit.spare >= SPARE, f"{job.name}: {fit}, only {fit.spare:.1%} to spare"
