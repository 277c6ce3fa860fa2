"""vLLM's engines as on a GPU host, in a process of their own that is spawned: they score and sample on a CPU."""

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from calopd.rundir.policies import policy_dir, publish_policy
from tests.services.processes import ROOT

AS_ON_GPUS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}


def result_of(module: str, *arguments: str) -> dict:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | AS_ON_GPUS, capture_output=True, text=True, timeout=1500)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-4000:]
    return json.loads(lines[0].removeprefix("RESULT "))


@pytest.fixture(scope="module")
def scored(tiny):
    return result_of("tests.gpu.vllm_teacher", str(tiny.teacher), "1")


def test_the_teacher_scores_like_the_torch_engine(scored):
    assert scored["client"] == "SyncMPClient", "the engine is not a process of its own"
    assert scored["deviation"] < 1e-3
    assert scored["reference"] < 1e-3
    assert scored["ids_equal"]


def test_arrays_would_not_survive_the_way_between_the_processes(scored):
    """Planted: a worker's method that returns an array. The engine's own returns bytes."""
    assert scored["array_comes_back_as"] != "ndarray"


def test_the_sampler_samples_and_takes_a_policy(tiny, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny.student, dtype=torch.float32)
    weights = {name: tensor + 0.3 * torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    del weights["lm_head.weight"]
    publish_policy(tmp_path, 7, weights, "r")
    result = result_of("tests.services.rollout.vllm_update", str(tiny.student), str(policy_dir(tmp_path, 7)))
    assert max(result["before"], result["after"]) < 1e-3
    assert result["moved"] > 0.1
    assert result["repeats"]
