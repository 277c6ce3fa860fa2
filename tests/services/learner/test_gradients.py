"""One step gives one gradient, however it is cut into ranks and micro-batches and in whatever order it arrives."""

import json
import os
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import AutoModelForCausalLM

from calopd.core.losses import LossAggMode
from calopd.core.method_inputs import TokenBatch
from calopd.doctor.model_jobs import LAUNCHER
from tests.core.objectives import objective_of
from tests.services.learner.gradients import Case, trajectories
from tests.services.processes import ROOT

pytestmark = pytest.mark.slow


MODES: tuple[LossAggMode, ...] = get_args(LossAggMode)
WHOLE = {mode: Case(mode, 10**6, 0) for mode in MODES}
PARTS = {mode: Case(mode, 150, 1) for mode in MODES}
SHUFFLED = {mode: Case(mode, 150, 2, False) for mode in MODES}
ORDERS = [Case("seq-mean-token-mean", 150, order) for order in (3, 4)]


def run(model: Path, out: Path, ranks: int, cases: list[Case]) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", LAUNCHER, f"--nproc-per-node={ranks}"]
    command += [
        "-m",
        "tests.services.learner.gradients",
        str(model),
        str(out),
        json.dumps([astuple(case) for case in cases]),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return torch.load(out, weights_only=True)


@pytest.fixture(scope="module")
def one_rank(tiny):
    return run(tiny.student, tiny.root / "one.pt", 1, list(WHOLE.values()))


@pytest.fixture(scope="module")
def two_ranks(tiny):
    return run(tiny.student, tiny.root / "two.pt", 2, [*PARTS.values(), *SHUFFLED.values(), *ORDERS])


def reference(tiny, mode: str) -> tuple[dict[str, torch.Tensor], float]:
    """The same step by plain transformers and autograd, one sequence at a time."""
    model = AutoModelForCausalLM.from_pretrained(tiny.student, dtype=torch.float32)
    logprobs, teachers, lengths = [], [], []
    for trajectory in trajectories():
        prompt, response = (torch.from_numpy(a).long() for a in (trajectory.prompt_ids, trajectory.sample.response_ids))
        full = model(torch.cat((prompt, response))[None]).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        own = full.gather(1, response[:, None]).squeeze(1)
        teachers.append(torch.from_numpy(trajectory.scores.logprobs))
        logprobs.append(own)
        lengths.append(len(response))
    own, (teacher, *probes) = torch.cat(logprobs), torch.cat(teachers, 1)
    tokens = TokenBatch(own.detach(), teacher, torch.stack(probes))
    loss = objective_of("cal_opd", loss_agg_mode=mode).loss(tokens, own, torch.tensor(lengths))
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}, loss.item()


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Relative to the norm of the whole gradient."""
    assert one.keys() == other.keys()
    apart = sum(((one[name] - other[name]).double() ** 2).sum() for name in one)
    return float((apart / sum((one[name].double() ** 2).sum() for name in one)) ** 0.5)


@pytest.mark.parametrize("mode", MODES)
def test_one_rank_and_one_micro_batch_equal_two_ranks_and_eight(tiny, one_rank, two_ranks, mode):
    whole, parts, shuffled = (
        one_rank[WHOLE[mode].name],
        two_ranks[PARTS[mode].name],
        two_ranks[SHUFFLED[mode].name],
    )
    assert whole["rounds"] == 1
    assert parts["rounds"] >= 4
    expected, loss = reference(tiny, mode)
    for seen in (whole, parts, shuffled):
        assert difference(expected, seen["gradient"]) < 1e-5
        assert seen["loss"] == pytest.approx(loss, rel=1e-5)


def test_three_ranks_whose_shards_are_uneven(tiny):
    """No size of the model can be divided by 3, as with the ranks of the recipe for the 8B student."""
    case = PARTS["seq-mean-token-mean"]
    three = run(tiny.student, tiny.root / "three.pt", 3, [case])[case.name]
    assert difference(reference(tiny, case.mode)[0], three["gradient"]) < 1e-5


def test_the_order_of_arrival_changes_no_bit_where_the_run_is_deterministic(two_ranks):
    one, other = (two_ranks[case.name]["gradient"] for case in ORDERS)
    assert all(torch.equal(one[name], other[name]) for name in one)
