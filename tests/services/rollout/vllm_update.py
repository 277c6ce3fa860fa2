"""Script: what vLLM samples with after a policy update, against the learner's own log-probabilities.

python -m tests.services.rollout.vllm_update INITIAL_MODEL POLICY_DIR [TOKENS] -> a JSON line with deviations in nats
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from calopd.core.lm_head import score_targets
from calopd.core.types import Sample, Sampling
from calopd.models.devices import set_vllm_environment
from calopd.rundir.policies import load_policy
from services.rollout.engines.sampling_engine import SampleRequest
from services.rollout.engines.vllm_sampler import VllmSampler
from services.rollout.sampler import SamplingLoop


def deviation(model: Any, requests: list[SampleRequest], samples: list[Sample]) -> float:
    """Largest |vLLM - learner| over the sampled tokens, the learner's by its own chunked head."""
    worst = 0.0
    for request, sample in zip(requests, samples, strict=True):
        ids = torch.from_numpy(np.concatenate((request.prompt_ids, sample.response_ids)).astype(np.int64))
        with torch.no_grad():
            hidden = model.model(input_ids=ids[None, :-1]).last_hidden_state[0, len(request.prompt_ids) - 1 :]
        own = score_targets(hidden, model.lm_head.weight, ids[len(request.prompt_ids) :]).logprobs
        worst = max(worst, float(np.abs(own.numpy() - sample.logprobs).max()))
    return worst


def main(initial: str, policy: str, tokens: str = "40") -> None:
    set_vllm_environment(1, 1)
    vllm = VllmSampler(
        initial, stop_ids=[2], max_model_len=256, max_num_seqs=16, max_num_batched_tokens=1_024, dtype="float32",
        seed=0, tensor_parallel_size=1, gpu_memory_utilization=0.5,
    )  # fmt: skip
    loop = SamplingLoop(vllm)
    draw = np.random.default_rng(0)
    # One prompt twice, so that a prefix cache that is not cleared would show.
    prompts = [draw.integers(3, 390, 64, np.int32) for _ in range(8)]
    requests = [SampleRequest(prompt, Sampling(1.0, 1.0, int(tokens)), seed) for seed, prompt in enumerate(prompts * 2)]

    def sample() -> list[Sample]:
        return [future.result() for future in [loop.sample(request) for request in requests]]

    model = AutoModelForCausalLM.from_pretrained(initial, dtype=torch.float32).eval()
    before = sample()
    again = sample()
    old = deviation(model, requests, before)
    loop.load_policy(Path(policy), 7).result()
    after = sample()
    model.load_state_dict(load_policy(Path(policy)), strict=False)
    result = {
        "before": old,
        "after": deviation(model, requests, after),
        "moved": float(np.abs(before[0].logprobs[:1] - after[0].logprobs[:1]).max()),
        "repeats": all(np.array_equal(a.response_ids, b.response_ids) for a, b in zip(before, again, strict=True)),
        "version": after[0].policy_version,
        "sampler": loop.name,
        "client": type(vllm._engine.engine_core).__name__,
        "stopped": sum(not s.truncated for s in before),
        "ends_with_stop": all(s.response_ids[-1] == 2 for s in before if not s.truncated),
    }
    print("RESULT " + json.dumps(result))
    loop.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
