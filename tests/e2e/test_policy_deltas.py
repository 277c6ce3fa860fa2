"""A whole run whose policies are deltas, with a rollout that is killed and catches up."""

import pytest

from calopd.config import load_config
from calopd.rundir.files import read_lines
from calopd.rundir.policies import policy_versions, read_manifest
from tests.e2e.runs import check_finished, finish, settings_of, start, wait_for_lines
from tests.e2e.test_run import kill

pytestmark = pytest.mark.slow
STEPS = 5


def test_a_killed_rollout_catches_up_from_the_snapshot(tiny):
    """At this rate few values change, even in float32."""
    file = tiny.write_config("deltas", steps=STEPS)
    settings = ["learner.learning_rate=1e-11", "evaluation.problems=0", f"run.steps={STEPS}"]
    config = load_config(file, settings, {})
    process = start(str(file), *settings_of(settings))
    wait_for_lines(config, 2, process)
    kill(process, "services.rollout")
    assert "rollout died" in finish(process)
    check_finished(config)
    versions = policy_versions(config.policies)
    assert (versions[0], versions[-1]) == (0, STEPS)
    assert [read_manifest(config.policies, version).is_delta for version in versions] == [False] + [True] * STEPS
    lines = read_lines(config.run_dir.metrics)
    assert all(line["logprob_mismatch"] < 1e-4 for line in lines)
    assert all(line["seconds_to_first_token"] > 0 for line in lines[1:])
