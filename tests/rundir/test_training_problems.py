"""The problems of a run stay the same, however often it is resumed."""

from pathlib import Path

import pytest

from calopd.core.errors import ConfigError
from calopd.rundir.layout import RunDir
from calopd.rundir.training_problems import check_problems, count_problems, keep_problems


def test_a_run_goes_on_with_the_problems_that_it_began_with(tmp_path: Path) -> None:
    run_dir, train = RunDir(tmp_path / "run"), tmp_path / "train.jsonl"
    train.write_text("first\nsecond\n")
    assert count_problems(run_dir) is None
    check_problems(run_dir, train)  # of a run that has not begun
    keep_problems(run_dir, train, 2)
    keep_problems(run_dir, train, 2)
    assert count_problems(run_dir) == 2
    train.write_text("first\nsecond\nthird\n")
    for again in (lambda: check_problems(run_dir, train), lambda: keep_problems(run_dir, train, 3)):
        with pytest.raises(ConfigError, match=r"has changed since the run .* began with 2 problems of it: restore"):
            again()
    train.unlink()
    check_problems(run_dir, train)  # a page of the run, made where the problems are not
