"""The live table in narrow and wide terminals."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from calopd.config import load_config
from calopd.local.display import Display
from calopd.rundir.files import append_line

HEADINGS = ("step", "retained", "zero-adv.", "accuracy", "length", "missing", "tokens/s", "seconds")
LINE = {
    "retained_ratio": 0.65, "zero_ratio": 0.16, "accuracy": 0.281, "response_length_mean": 12345.0, "tokens": 3_160_000,
    "seconds": 894.1, "seconds_learner": 30.0, "tickets_missing": 12,
}  # fmt: skip


def shown(tiny, width: int, *, finished: bool) -> str:
    file = tiny.write_config(f"shown-{width}-{finished}", steps=100)
    config = load_config(file, environ={})
    for step in (98, 99):
        append_line(config.run_dir.metrics, {"step": step, **LINE})
    learner = SimpleNamespace(name="learner", restarts=0, finished=finished)
    supervisor: Any = SimpleNamespace(processes=[learner])
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    display = Display(config, supervisor, console)
    display.update()
    for scrape in display._rollouts.values():
        scrape.samples = {"calopd_rollout_policy_version": 0.0}
    with console.capture() as captured:
        console.print(display._render())
    return captured.get()


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_heading_is_cut(tiny, width):
    text = shown(tiny, width, finished=False)
    assert "…" not in text
    assert all(heading in text for heading in HEADINGS)
    assert max(map(len, text.splitlines())) <= width


def test_the_last_frame_says_that_the_run_has_finished(tiny):
    text = shown(tiny, 80, finished=True)
    assert "step 100/100" in text
    assert "ETA 0:00" in text
    assert "finished" in text
    assert "policy 100" in text
    assert "learner" in text
    (learner,) = [line for line in text.splitlines() if "learner" in line]
    assert "starting" not in learner
