"""`calopd data solve`: correct solutions are kept, and what was attempted is not attempted again."""

import json
import subprocess
import sys

import pytest

from calopd.cli.registry import find_command
from calopd.config.sections.sampling import sampling_of
from calopd.data.answers import is_correct
from calopd.data.problems import load_problems
from calopd.local.replicated_job import attempt_settings, settings_file
from tests.services.processes import ROOT

pytestmark = pytest.mark.slow
DEMO = ROOT / "examples" / "demo"


def run(*words: str) -> str:
    command = [sys.executable, "-m", "calopd.cli", "data", "solve", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_right_solutions_are_kept_and_attempts_survive(tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [json.loads(line) for line in (DEMO / "heldout.jsonl").read_text().splitlines()[:24]]
    source.write_text("".join(json.dumps({k: row[k] for k in ("id", "problem", "answer")}) + "\n" for row in rows))
    early = [{"id": rows[0]["id"], "correct": True, "solution": "kept from before"}]
    early += [{"id": rows[1]["id"], "correct": False, "solution": "wrong before"}]
    attempts = tmp_path / "out.jsonl.attempts"
    attempts.write_text("".join(json.dumps(row) + "\n" for row in early))
    settings = ["--model", str(DEMO / "teacher"), "--engine", "torch", "--max-tokens", "96", "--in-flight", "8"]
    settings += ["--max-prompt-tokens", "256"]
    command, words = find_command(["data", "solve", str(source), "-o", str(out), *settings])
    made = command.parser().parse_args(words)
    assert attempt_settings(made, sampling_of(made))["dtype"] in ("float32", "bfloat16"), "the one that auto means here"
    settings_file(out).write_text(json.dumps(attempt_settings(made, sampling_of(made))))
    said = run(str(source), "-o", str(out), *settings)
    solved = load_problems(out)
    assert f"{len(solved)} of 24 problems have a correct solution" in said
    assert solved[0].solution == "kept from before"
    assert rows[1]["id"] not in {problem.id for problem in solved}
    assert len(solved) >= 18
    assert all(is_correct(problem.solution, problem.answer) for problem in solved[1:])
    assert len(attempts.read_text().splitlines()) == 24
    before = out.read_bytes()
    run(str(source), "-o", str(out), *settings)
    assert out.read_bytes() == before


def test_replicas_share_the_problems_each_on_its_gpus(tmp_path, monkeypatch):
    """The solutions are those of one process; on a machine without GPUs the ids of GPUs change nothing.

    A solution depends on the seed and the problem's id, not on its place in the file.
    """
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    source = tmp_path / "in.jsonl"
    source.write_text("".join((DEMO / "heldout.jsonl").read_text().splitlines(keepends=True)[:8]))
    settings = ["--model", str(DEMO / "teacher"), "--engine", "torch", "--max-tokens", "96", "--in-flight", "1"]
    settings += ["--max-prompt-tokens", "256"]
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    reversed_source = tmp_path / "reversed.jsonl"
    reversed_source.write_text("".join(reversed(source.read_text().splitlines(keepends=True))))
    run(str(reversed_source), "-o", str(one), *settings)
    said = run(str(source), "-o", str(two), *settings, "--gpus", "0,1")
    assert "2 processes" in said
    assert "of 8 problems have a correct solution" in said
    solved = two.read_text().splitlines()
    assert solved
    assert solved == list(reversed(one.read_text().splitlines()))
    shares = [len((tmp_path / f"two.jsonl.attempts{suffix}").read_text().splitlines()) for suffix in ("", "-1")]
    assert shares == [4, 4]
    assert {file.name for file in (tmp_path / "two.jsonl.logs").glob("*.log")} == {"replica-0.log", "replica-1.log"}
