"""Mistakes that can be known before the start are told within five seconds.

`python -m tests.cli.test_seconds_to_error` measures all of them.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cli.test_mistakes import EVAL_RUN, MISTAKES, SOLVE, STUDY
from tests.cli.workspace import build
from tests.services.processes import ROOT

ONE_OF_EACH_KIND = (
    "run run.toml --set run.step=3", "run run.toml --set teacher.path=truncated",
    "run run.toml --set teacher.path=other-vocabulary", "run run.toml --set rollout.max_tokens=2000",
    "run run.toml --set data.train=long.jsonl", "run run.toml --set run.name=existing",
    "run run.toml --set method.file=failing_method.py", "report runs/thesis",
    "eval student --benchmark heldout.jsonl --max-tokens 96", EVAL_RUN, f"{SOLVE} -o solved.jsonl",
    "data negatives train.jsonl -o out.jsonl --tokenizer ./nowhere",
    f"{STUDY} --set teacher.path=models/nowhere", "tsd show study",
    "services.rollout --config run.toml --set queue.url=redis://127.0.0.1:1/0",
)  # fmt: skip
CHOSEN = [mistake for mistake in MISTAKES if mistake[0] in ONE_OF_EACH_KIND]


def cpu_seconds_of(line: str, code: int, folder: Path) -> float:
    """Make a mistake in a process of its own, and return its CPU time."""
    words = line.split()
    module = words.pop(0) if words and words[0].startswith("services.") else "calopd.cli"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", module, *words], cwd=folder, env=environment, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == code, (line, done.stderr)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_the_chosen_mistakes_are_in_the_table() -> None:
    assert len(CHOSEN) == len(ONE_OF_EACH_KIND)


@pytest.mark.slow
@pytest.mark.parametrize(("line", "code", "message"), CHOSEN, ids=[line for line, *_ in CHOSEN])
def test_a_mistake_is_known_within_five_seconds(line, code, message, workspace):
    """CPU time, which a busy machine does not change; test_mistakes.py bounds the waiting of all mistakes."""
    assert cpu_seconds_of(line, code, workspace) < 5


def measure() -> None:
    """Print the slowest mistakes, each as a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        times = {line: cpu_seconds_of(line, code, Path(folder)) for line, code, _ in MISTAKES if "{" not in line}
    slowest = sorted(times, key=lambda line: times[line], reverse=True)
    for line in slowest[:10]:
        print(f"{times[line]:5.1f} CPU s  {line}")
    print(f"{len(times)} mistakes, median {times[slowest[len(times) // 2]]:.1f} s, slowest {times[slowest[0]]:.1f} s")


if __name__ == "__main__":
    measure()
