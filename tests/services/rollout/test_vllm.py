"""vLLM samples from the policy that was published, whether the embeddings are tied or not."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from calopd.rundir.policies import policy_dir, publish_policy
from tests.services.processes import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("which", ["student", "untied"])
def test_after_an_update_it_samples_with_the_learners_log_probabilities(tiny, tmp_path, which):
    initial = getattr(tiny, which)
    model = AutoModelForCausalLM.from_pretrained(initial, dtype=torch.float32)
    weights = {name: tensor + 0.3 * torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    publish_policy(tmp_path, 7, weights, "r")
    command = [sys.executable, "-m", "tests.services.rollout.vllm_update", str(initial), str(policy_dir(tmp_path, 7))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    result = json.loads(lines[0].removeprefix("RESULT "))
    assert result["before"] < 1e-3
    assert result["after"] < 1e-3
    assert result["moved"] > 0.1, "the update changed nothing: the test could not fail"
    assert result["repeats"], "a seeded request must not depend on when it is asked"
    assert result["version"] == 7
    assert result["sampler"].startswith("vllm ")
    assert result["ends_with_stop"]
