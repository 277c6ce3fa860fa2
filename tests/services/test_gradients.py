"""One step gives one gradient, however it is cut into ranks and micro-batches and in whatever order it arrives."""

import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from calopd.losses import LOSS_AGG_MODES, clamp_advantage, step_loss
from calopd.methods import METHODS
from calopd.types import MethodSettings, TokenBatch
from tests.services.gradients import trajectories
from tests.services.processes import ROOT

pytestmark = pytest.mark.slow


def gradient(tiny, tmp_path, mode: str, *, ranks: int, budget: int, order: int, deterministic: bool = True):
    out = tmp_path / f"{ranks}-{budget}-{order}-{deterministic}.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "tests.services.gradients", str(tiny.student), str(out), mode, str(budget), str(order)]
    command += [str(int(deterministic))]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return torch.load(out, weights_only=True)


def reference(tiny, mode: str) -> tuple[dict[str, torch.Tensor], float]:
    """The same step by plain transformers and autograd, one sequence at a time."""
    model = AutoModelForCausalLM.from_pretrained(tiny.student, dtype=torch.float32)
    logprobs, advantages, lengths = [], [], []
    for trajectory in trajectories():
        prompt, response = (torch.from_numpy(a).long() for a in (trajectory.prompt_ids, trajectory.sample.response_ids))
        full = model(torch.cat((prompt, response))[None]).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        own = full.gather(1, response[:, None]).squeeze(1)
        teacher = torch.from_numpy(trajectory.scores.logprobs)
        tokens = TokenBatch(own.detach(), teacher[0], teacher[1:])
        advantages.append(clamp_advantage(METHODS["cal_opd"].advantage(tokens, MethodSettings()), 10.0))
        logprobs.append(own)
        lengths.append(len(response))
    loss = step_loss(torch.cat(advantages), torch.cat(logprobs), torch.tensor(lengths), mode)
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}, loss.item()


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Relative to the norm of the whole gradient."""
    assert one.keys() == other.keys()
    apart = sum(((one[name] - other[name]).double() ** 2).sum() for name in one)
    return float((apart / sum((one[name].double() ** 2).sum() for name in one)) ** 0.5)


@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
def test_one_rank_and_one_micro_batch_equal_two_ranks_and_eight(tiny, tmp_path, mode):
    whole = gradient(tiny, tmp_path, mode, ranks=1, budget=10**6, order=0)
    parts = gradient(tiny, tmp_path, mode, ranks=2, budget=150, order=1)
    shuffled = gradient(tiny, tmp_path, mode, ranks=2, budget=150, order=2, deterministic=False)
    assert whole["rounds"] == 1
    assert parts["rounds"] >= 4
    expected, loss = reference(tiny, mode)
    for seen in (whole, parts, shuffled):
        assert difference(expected, seen["gradient"]) < 1e-5
        assert seen["loss"] == pytest.approx(loss, rel=1e-5)


def test_the_order_of_arrival_changes_no_bit_where_the_run_is_deterministic(tiny, tmp_path):
    one, other = (
        gradient(tiny, tmp_path, "seq-mean-token-mean", ranks=2, budget=150, order=order)["gradient"]
        for order in (3, 4)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
