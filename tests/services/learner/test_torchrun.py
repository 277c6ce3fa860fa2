import subprocess
import sys

import pytest

from calopd.local.entry_point import CONFIG_ERROR_EXIT
from tests.services.processes import ROOT


@pytest.mark.slow
def test_the_exit_code_is_that_of_the_rank(tmp_path):
    """Whoever started the learner can tell a settings error from a crash."""
    command = [sys.executable, "-m", "services.learner.torchrun", "--standalone", "-m", "services.learner"]
    done = subprocess.run(
        [*command, "--config", str(tmp_path / "no.toml")], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == CONFIG_ERROR_EXIT, done.stderr
    assert "cannot read the configuration" in done.stderr
