"""`calopd tsd collect` on the demo's pair: killed in the middle, it goes on, and every rollout counts once."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from calopd.study.analyze import analyze
from calopd.study.shards import Study
from tests.ports import free_ports
from tests.services.processes import ROOT

pytestmark = pytest.mark.slow
ROLLOUTS = 24
PLACED = ["--set", "resources.teacher=[0]", "--set", "resources.rollout=[1]"]
"""On a machine without GPUs the ids change nothing."""


def collect(out: Path, *words: str, rollouts: int = ROLLOUTS) -> "subprocess.Popen[str]":
    """The command as a user types it, at ports of its own; shards of a few rollouts, so that there is a middle."""
    port, metrics = free_ports(2)
    settings = {
        "rollout.engine": "torch", "rollout.max_in_flight": 4, "rollout.threads": 1, "teacher.threads": 1,
        "teacher.port": port, "teacher.metrics_port": metrics,
    }  # fmt: skip
    command = [sys.executable, "-m", "calopd.cli", "tsd", "collect", "configs/demo.toml", "-o", str(out), *words]
    command += ["--rollouts", str(rollouts), "--shard-tokens", "300"]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: "subprocess.Popen[str]") -> str:
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0, out
    return out


def kill_in_the_middle(process: "subprocess.Popen[str]", study: Study) -> dict[str, str | None]:
    """SIGKILL to the command and to all that it started, once two shards are there; return the GPUs of each module."""
    deadline = time.monotonic() + 600
    while len(study.shards) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    gpus = {
        module: member.environ().get("CUDA_VISIBLE_DEVICES")
        for member in family
        for module in member.cmdline()
        if module.startswith("services.")
    }
    for member in family:
        member.kill()
    psutil.wait_procs(family, timeout=120)
    process.communicate()
    return gpus


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Study:
    study = Study(tmp_path_factory.mktemp("tsd") / "killed")
    process = collect(study.directory, *PLACED)
    gpus = kill_in_the_middle(process, study)
    assert gpus == {"services.teacher_scorer": "0", "services.rollout.jobs.collect": "1"}
    assert 0 < len(list(study.rollouts())) < ROLLOUTS
    before = {shard: shard.read_bytes() for shard in study.shards}
    said = finish(collect(study.directory))
    assert all(shard.read_bytes() == content for shard, content in before.items()), "what was there is not done again"
    assert f"in {ROLLOUTS} rollouts" in said
    return study


def test_killed_and_resumed_every_rollout_counts_once(killed):
    rollouts = [rollout for _, _, rollout in killed.rollouts()]
    assert sorted(rollout.index for rollout in rollouts) == list(range(ROLLOUTS))
    assert not killed.files.refused_files
    analysis = analyze(killed.directory, min_count=10)
    first = killed.files.analysis.read_bytes()
    assert analysis["tokens"] == sum(rollout.tokens for rollout in rollouts)
    assert (analysis["rollouts"], analysis["judged"]) == (ROLLOUTS, ROLLOUTS)
    assert len(analysis["contexts"]) == 8
    for tau in ("0.01", "0.05", "0.1"):
        counts = analysis["prevalence"][tau]
        for group, contexts in analysis["groups"].items():
            union, parts = counts["groups"][group]["tokens"], [counts["contexts"][c]["tokens"] for c in contexts]
            joint = analysis["consistency"][tau][group]["joint_tokens"]
            assert union == sum(parts) - joint
    noise = analysis["noise"]
    assert (noise["responses"], noise["tokens"]) == (ROLLOUTS, analysis["tokens"]), "c0 of all was scored twice"
    assert noise["floor"] < 0.001, "float32 on one machine"
    assert noise["beyond"]["0.01"] == 0.0
    kinds = analysis["kinds"]["0.01"]
    assert sum(entry["tokens"] for entry in kinds.values()) == analysis["tokens"]
    assert kinds["word"]["rho"]["eval+"] > kinds["number"]["rho"]["eval+"], "so the demo's teacher was made"
    analyze(killed.directory, min_count=10)
    assert killed.files.analysis.read_bytes() == first


def test_recorded_rollouts_are_scored_as_sampled_ones(killed, tmp_path):
    """A few of the rollouts as others would hand them in, one without the student's log-probabilities."""
    places = sorted(killed.rollouts(), key=lambda place: place[2].index)[:3]
    wanted = [killed.read(*place) for place in places]
    file = tmp_path / "rollouts.jsonl"
    rows = [
        {"problem_id": part.rollout.problem_id, "response_ids": part.token_ids.tolist(),
         "student_logprobs": part.student_logprobs.tolist()}
        for part in wanted
    ]  # fmt: skip
    del rows[1]["student_logprobs"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    study = Study(tmp_path / "recorded")
    finish(collect(study.directory, "--from", str(file), "--contexts", "eval"))
    found = sorted((study.read(*place) for place in study.rollouts()), key=lambda part: part.rollout.index)
    assert study.contexts == ["c0", "eval+", "eval-"]
    columns = [killed.contexts.index(name) for name in study.contexts]
    for one, other in zip(wanted, found, strict=True):
        assert np.array_equal(one.token_ids, other.token_ids)
        assert np.allclose(one.student_logprobs, other.student_logprobs, atol=1e-3)
        assert np.allclose(one.teacher_logprobs[columns], other.teacher_logprobs, atol=1e-3)
        assert one.rollout.correct == other.rollout.correct


def test_a_study_of_other_settings_is_refused(killed, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(killed.files.facts, copy)
    process = collect(copy, "--contexts", "eval")
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 78
    assert "has contexts = " in out
