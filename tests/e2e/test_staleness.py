"""A whole run that samples each step while the one before it is trained."""

import pytest

from calopd.rundir.files import read_lines
from tests.e2e.runs import check_model, run_with_a_kill

pytestmark = pytest.mark.slow
STEPS = 5


def test_stale_trajectories_are_used_once_and_measured_also_after_a_kill(tiny):
    file = tiny.write_config("stale", steps=STEPS)
    config = run_with_a_kill(file, ["run.max_staleness=1"], "learner", after=2)
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
