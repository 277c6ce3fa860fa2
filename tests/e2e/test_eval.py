"""`calopd eval` as a user types it: killed and resumed, on several replicas, on what a run left."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.services.processes import ROOT

pytestmark = pytest.mark.slow
DEMO = ROOT / "examples" / "demo"
SMALL = ["--benchmark", str(DEMO / "heldout.jsonl"), "--problems", "16", "-n", "2", "--max-tokens", "96"]
SMALL += ["--max-prompt-tokens", "256", "--in-flight", "4", "--engine", "torch"]


def start(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "calopd.cli", "eval", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: "subprocess.Popen[str]", code: int = 0) -> str:
    out, _ = process.communicate(timeout=900)
    assert process.returncode == code, out
    return out


def samples(file: Path) -> dict[str, Any]:
    """results.json without the one thing that two evaluations may differ in."""
    results = json.loads(file.read_text())
    for benchmark in results["benchmarks"]:
        for sample in benchmark["samples"]:
            del sample["seconds"]
    return results


@pytest.fixture(scope="module")
def undisturbed_eval(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("eval")
    said = finish(start(str(DEMO / "student"), *SMALL, "-o", str(out)))
    assert "Avg@2" in said
    assert (out / "evaluation.html").stat().st_size > 100_000
    return out / "student"


def test_killed_in_the_middle_it_ends_with_the_same_samples(undisturbed_eval, tmp_path):
    process = start(str(DEMO / "student"), *SMALL, "-o", str(tmp_path))
    journal = tmp_path / "student" / "samples" / "0.jsonl"
    deadline = time.monotonic() + 600
    while not (journal.exists() and len(journal.read_bytes().splitlines()) >= 8):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    family = psutil.Process(process.pid).children(recursive=True)
    for victim in (process, *family):
        victim.kill()
    process.communicate()
    psutil.wait_procs(family, timeout=120)
    kept = len(journal.read_bytes().splitlines())
    assert 8 <= kept < 32
    assert not (tmp_path / "student" / "results.json").exists()
    with journal.open("ab") as out:
        out.write(b'{"benchmark": "heldout", "problem_id": "half a li')
    finish(start(str(DEMO / "student"), *SMALL, "-o", str(tmp_path)))
    assert samples(tmp_path / "student" / "results.json") == samples(undisturbed_eval / "results.json")


def test_replicas_share_the_work_and_models_are_compared(undisturbed_eval, tmp_path, monkeypatch):
    models = [f"student={DEMO / 'student'}", f"teacher={DEMO / 'teacher'}"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    said = finish(start(*models, *SMALL, "--gpus", "0,1", "-o", str(tmp_path)))
    assert samples(tmp_path / "student" / "results.json") == samples(undisturbed_eval / "results.json")
    assert len(list((tmp_path / "student" / "samples").iterdir())) == 2
    assert "significant" in said
    assert "all 32 samples are already on disk" in finish(start(*models, *SMALL, "-o", str(tmp_path)))
    out = finish(start("compare", str(tmp_path / "student"), str(tmp_path / "teacher"), "--format", "markdown"))
    assert out.startswith("| Model / Method | heldout |")
    warm = finish(start(*models, *SMALL, "--temperature", "1", "-o", str(tmp_path)), code=78)
    assert "contains samples with temperature = 0.6, not 1.0" in warm


def test_what_a_run_left_is_one_model(undisturbed, tiny, tmp_path):
    """The exported model, the last policy and the last checkpoint answer alike; the first policy does not."""
    run, last = undisturbed.run_dir, undisturbed.run.steps
    models = [f"exported={run}", f"policy={run}@{last}", f"checkpoint={run.checkpoint(last)}"]
    options = ["--benchmark", str(tiny.heldout), "-n", "1", "--max-tokens", "24", "--max-prompt-tokens", "256"]
    options += ["--engine", "torch", "--top-p", "1", "-o", str(tmp_path)]
    finish(start(*models, f"initial={tiny.student}", *options))
    texts = {
        label: [s["response_ids"] for s in samples(tmp_path / label / "results.json")["benchmarks"][0]["samples"]]
        for label in ("exported", "policy", "checkpoint", "initial")
    }
    assert texts["exported"] == texts["policy"] == texts["checkpoint"] != texts["initial"]
    evaluated = json.loads(run.evaluation(last).read_text())
    by_problem = samples(tmp_path / "exported" / "results.json")["benchmarks"][0]["samples"]
    ours = {s["problem_id"]: float(s["correct"]) for s in by_problem}
    assert all(ours[problem] == score for problem, score in evaluated["by_problem"].items())
