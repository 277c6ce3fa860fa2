"""A process ends with the one that started it, at whatever moment that is killed."""

import os
import subprocess
import sys

import psutil

from calopd.local.entry_point import RESTART_EXIT, ends_with_this_process
from tests.services.processes import ROOT

CHILD = [sys.executable, "-c", "import signal; print('started', flush=True); signal.pause()"]


def test_a_child_ends_with_its_parent():
    parent = f"""
import subprocess
from calopd.local.entry_point import ends_with_this_process
child = subprocess.Popen({CHILD!r}, preexec_fn=ends_with_this_process())
print(child.pid, flush=True)
child.wait()
"""
    with subprocess.Popen([sys.executable, "-c", parent], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        child = psutil.Process(int(process.stdout.readline()))
        assert process.stdout.readline() == "started\n"
        process.kill()
        child.wait(timeout=60)


def test_a_child_whose_parent_was_killed_before_it_could_ask_ends_too(monkeypatch):
    """The kernel sends no signal then. A rollout of a killed launcher once worked on beside that of the next one."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: 1)  # a parent that this one's children never have
        prepare = ends_with_this_process()
    done = subprocess.run(CHILD, preexec_fn=prepare, stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == RESTART_EXIT
    assert done.stdout == b""
