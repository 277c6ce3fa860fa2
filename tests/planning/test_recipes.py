"""Every shipped recipe: counted, equal to the formula within 10 %, and with 10 % to spare on its GPU."""

import json

import pytest

from benchmarks.memory import RESULTS, TOLERANCE, first_of_each_role, formula_row, recipes
from calopd.planning import SPARE, role_fits

RECIPES = recipes()


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
