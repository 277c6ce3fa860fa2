import os
import subprocess
import sys
from pathlib import Path

import pytest

from calopd.local.entry_point import CONFIG_ERROR_EXIT
from calopd.local.services import LEARNER_LAUNCHER
from tests.services.processes import ROOT

pytestmark = pytest.mark.slow


def torchrun(*words: str, error_file: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", LEARNER_LAUNCHER, "--standalone", *words]
    environment = {**os.environ, "CALOPD_ERROR_FILE": str(error_file)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)


def test_the_exit_code_is_that_of_the_rank(tmp_path):
    """The process that started the learner can tell an error of the user from a crash, and has its message."""
    words = ("-m", "services.learner", "--config", str(tmp_path / "no.toml"))
    done = torchrun(*words, error_file=tmp_path / "error")
    assert done.returncode == CONFIG_ERROR_EXIT, done.stderr
    assert "cannot read the configuration" in done.stderr
    assert (tmp_path / "error").read_text().startswith("cannot read the configuration")


def test_a_users_error_counts_more_than_the_crashes_that_it_causes(tmp_path):
    done = torchrun("--nproc-per-node=2", "-m", "tests.services.learner.failing_rank", error_file=tmp_path / "error")
    assert done.returncode == CONFIG_ERROR_EXIT, done.stderr
    assert (tmp_path / "error").read_text() == "found by rank 1"
