"""Runs that `calopd report compare` takes for seeds of one setting."""

import shutil
from pathlib import Path

from calopd.config import load_config
from calopd.pages.comparison.compared_page import write_comparison_of_runs
from calopd.pages.comparison.run_groups import group_runs
from calopd.rundir.layout import RunDir
from tests.experiments.finished_runs import finish_run
from tests.services.processes import ROOT


def control(folder: Path, seed: int, follows: str, relaxation: float, retained: float) -> RunDir:
    """An Advantage-Sync run, and the run that it follows."""
    recorded = load_config(
        ROOT / "configs" / "demo.toml",
        [f'run.dir="{folder}"', f"run.name={follows}", f"method.relaxation={relaxation}"],
        environ={},
    )
    finish_run(recorded)
    own = ["method.name=advantage_sync", f'method.recorded_run="{recorded.run_dir}"', f"run.seed={seed}"]
    own += [f'run.dir="{folder}"', f"run.name=control-{seed}-{follows}"]
    config = load_config(ROOT / "configs" / "demo.toml", own, environ={})
    finish_run(config, retained=retained)
    return config.run_dir


def test_controls_that_follow_other_settings_are_no_seeds(tmp_path):
    first, second = control(tmp_path, 0, "cal-a", 5, 0.6), control(tmp_path, 1, "cal-b", 5, 0.7)
    other = control(tmp_path, 0, "cal-80", 80, 0.2)
    groups = group_runs([first, second, other])
    assert [(group.name, len(group.records)) for group in groups] == [
        ("advantage_sync, relaxation 5", 2),
        ("advantage_sync, relaxation 80", 1),
    ]
    shutil.rmtree(tmp_path / "cal-80")
    shutil.rmtree(tmp_path / "cal-a")
    assert [len(group.records) for group in group_runs([first, second, other])] == [1, 1, 1], "nobody knows"


def test_a_seed_that_stands_twice_is_not_called_another_seed(tmp_path):
    same = [control(tmp_path, 0, follows, 5, 0.6) for follows in ("cal-a", "cal-b")]
    page = write_comparison_of_runs(group_runs(same), tmp_path / "out").read_text()
    assert "Mean over 2 runs" in page
    assert "seeds;" not in page
