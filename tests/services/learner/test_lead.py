"""The lead of a run: a learner that was replaced ends."""

import os
import subprocess
import sys

import pytest

from calopd.core.environment import ERROR_FILE
from calopd.local.entry_point import CONFIG_ERROR_EXIT
from calopd.transport.queue import open_queue

LEARNER = """
import sys, time
from calopd.transport.queue import open_queue
from services.learner import lead
lead.SHOWN_SECONDS = 0.05
queue = open_queue(sys.argv[1], "r")
queue.lead("host")
lead.show_lead(queue)
print("leads", flush=True)
time.sleep(600)  # a long optimizer step
"""


@pytest.mark.parametrize("redis_server", ["embedded"], indirect=True)
def test_a_learner_that_was_replaced_ends_while_it_computes(redis_server, tmp_path):
    told = tmp_path / "learner.error"
    environment = {**os.environ, ERROR_FILE.name: str(told)}
    command = [sys.executable, "-c", LEARNER, redis_server.url]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as learner:
        assert learner.stdout is not None
        try:
            assert learner.stdout.readline() == "leads\n"
            open_queue(redis_server.url, "r").lead("host")
            assert learner.wait(timeout=60) == CONFIG_ERROR_EXIT
        finally:
            learner.kill()
    assert told.read_text() == "another learner works on the run r: this one stops, two would undo each other's steps"
