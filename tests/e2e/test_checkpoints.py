"""Checkpoints of whole runs: written after the tickets of the next step are out, and resumed from."""

import re
import subprocess
import time

import pytest
import torch

from calopd.config import Config, load_config
from calopd.rundir import checkpoints
from calopd.rundir.files import read_lines
from calopd.rundir.policies import policy_versions
from tests.e2e.conftest import STEPS
from tests.e2e.runs import check_finished, finish, kill, settings_of, start
from tests.e2e.test_run import update

pytestmark = pytest.mark.slow


def logged(config: Config) -> str:
    file = config.run_dir.logs / "learner.log"
    return file.read_text() if file.exists() else ""


def wait_for_log(config: Config, text: str, process: "subprocess.Popen[str]", seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while text not in logged(config):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_tickets_of_a_step_are_open_before_its_checkpoint_is_durable(undisturbed):
    """The timeline of the log: optimizer step, policy, tickets, line, and only then the checkpoint."""
    events = re.findall(
        r"(policy|step|checkpoint of step) (\d+)( is published|:| is open| is copied| is durable)", logged(undisturbed)
    )
    order = [f"{what} {number}{event}" for what, number, event in events if event != ":" or what == "step"]
    for done in range(1, STEPS + 1):
        wanted = [f"policy {done} is published", f"step {done + 1} is open", f"step {done}:"]
        wanted += [f"checkpoint of step {done} is copied", f"checkpoint of step {done} is durable"]
        places = [order.index(event) for event in wanted if done < STEPS or "open" not in event]
        assert places == sorted(places), order


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_learner_killed_between_tickets_and_checkpoint_repeats_the_steps_and_counts_each_ticket_once(
    tiny, undisturbed, deterministic
):
    """Policies 1 and 2 are published and the tickets of step 2 are out, but no checkpoint exists."""
    name, steps = f"window-{deterministic}".lower(), STEPS if deterministic else 4
    file = tiny.write_config(name, steps=steps)
    settings = [f"run.deterministic={str(deterministic).lower()}", f"learner.checkpoint_every={steps}"]
    config = load_config(file, settings, {})
    process = start(str(file), *settings_of(settings))
    wait_for_log(config, "step 3 is open", process)
    kill(process, "services.learner")
    assert checkpoints.latest(config.run_dir) is None
    assert max(policy_versions(config.policies)) >= 2
    assert "learner died" in finish(process)
    check_finished(config)
    assert logged(config).count("step 2 is open") == 2
    assert [line["tickets_used"] for line in read_lines(config.run_dir.metrics)] == [16] * steps
    if deterministic:
        assert torch.equal(update(config), update(undisturbed))
