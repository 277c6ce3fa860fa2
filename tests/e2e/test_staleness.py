"""A whole run that samples each step while the one before it is trained."""

import pytest

from calopd.config import load_config
from calopd.rundir.files import read_lines
from tests.e2e.runs import check_finished, check_model, finish, settings_of, start, wait_for_lines
from tests.e2e.test_run import kill

pytestmark = pytest.mark.slow
STEPS = 5


def test_stale_trajectories_are_used_once_and_measured_also_after_a_kill(tiny):
    file = tiny.write_config("stale", steps=STEPS)
    settings = ["run.max_staleness=1", "evaluation.problems=0", f"run.steps={STEPS}"]
    config = load_config(file, settings, {})
    process = start(str(file), *settings_of(settings))
    wait_for_lines(config, 2, process)
    kill(process, "services.learner")
    assert "learner died" in finish(process)
    check_finished(config)
    check_model(config)
    lines = read_lines(config.run_dir.metrics)
    assert lines[0]["staleness"] == 0
    assert all(0 <= line["staleness"] <= 1 for line in lines)
    stale = [line for line in lines if line["staleness"] > 0]
    assert stale, "no step was sampled early"
    for line in stale:
        assert 0 < line["importance_ratio"] <= 2
        assert 0 <= line["importance_truncated_share"] < 0.5
    log = (config.run_dir.logs / "learner.log").read_text()
    assert log.index("step 2 is open") < log.index("step 1: retained")
