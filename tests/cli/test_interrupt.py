"""Ctrl-C in the first seconds of a command: one or two lines, exit code 130, and nothing that goes on."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from tests.services.processes import ROOT
from tests.sockets import family
from tests.tiny import Tiny

pytestmark = pytest.mark.slow

MARK = "TEST_INTERRUPT_MARK"
AFTER = (0.3, 1.0, 3.0)
"""CPU seconds of the command and all that it started: on a busy machine it has not come as far after the same time."""
SHORT = "--engine torch --max-tokens 900 --max-prompt-tokens 100"
COMMANDS = {
    "run": "run {config}",
    "eval": f"eval {{student}} --benchmark {{heldout}} -n 100 -o {{root}}/evaluated {SHORT}",
    "data solve": f"data solve {{train}} --model {{teacher}} -o {{root}}/solved.jsonl {SHORT}",
    "tsd collect": "tsd collect {config} -o {root}/study --rollouts 1000",
}


def cpu_seconds(pid: int) -> float:
    total = 0.0
    for process in family(pid):
        try:
            total += sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return total


def marked(mark: str) -> list[psutil.Process]:
    """The processes that inherited the environment of a test, whatever became of their parents."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("command", COMMANDS)
def test_it_ends_with_a_line_and_leaves_no_process(command: str, after: float, tiny: Tiny, tmp_path: Path) -> None:
    config = tiny.write_config(f"interrupted-{command}-{after}".replace(" ", "-"), steps=100)
    names = {"config": config, "root": tmp_path, **{n: getattr(tiny, n) for n in ("student", "teacher", "train")}}
    words = COMMANDS[command].format(heldout=tiny.heldout, **names).split()
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "calopd.cli", *words],
        cwd=ROOT,
        env=os.environ | {MARK: mark, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell lets its background jobs, such as this test may be, ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while cpu_seconds(process.pid) < after:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert 1 <= len(said.strip().splitlines()) <= 2, said
    assert said.strip().splitlines()[-1].startswith("stopped"), said
    assert "Traceback" not in said
    assert not marked(mark)
