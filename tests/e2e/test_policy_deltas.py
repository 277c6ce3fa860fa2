"""A whole run whose policies are deltas, with a rollout that is killed and catches up."""

import pytest

from calopd.rundir.files import read_lines
from calopd.rundir.policies import policy_versions, read_manifest
from tests.e2e.runs import run_with_a_kill

pytestmark = pytest.mark.slow
STEPS = 5


def test_a_killed_rollout_catches_up_from_the_snapshot(tiny):
    """At this rate few values change, even in float32."""
    file = tiny.write_config("deltas", steps=STEPS)
    config = run_with_a_kill(file, ["learner.learning_rate=1e-11"], "rollout", after=2)
    versions = policy_versions(config.policies)
    assert (versions[0], versions[-1]) == (0, STEPS)
    assert [read_manifest(config.policies, version).is_delta for version in versions] == [False] + [True] * STEPS
    lines = read_lines(config.run_dir.metrics)
    assert all(line["logprob_mismatch"] < 1e-4 for line in lines)
    assert all(line["seconds_to_first_token"] > 0 for line in lines[1:])
