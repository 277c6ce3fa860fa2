"""Every method: the gradient of two ranks is that of one, and a method starts as early as its plan allows."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import cast

import pytest
import torch
from torch.distributed.tensor import DTensor

from calopd.config import load_config
from calopd.config.sections import LearnerSection, MethodSection
from calopd.core.method_inputs import StepInfo
from calopd.core.methods import METHODS
from calopd.doctor.model_jobs import LAUNCHER
from services.learner.ranks import Ranks
from services.learner.trainer import Trainer
from tests.services.learner.method_gradients import Gradients, form
from tests.services.learner.test_packed_step import CASES, loaded, scored
from tests.services.processes import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_ranks(tiny) -> dict[str, Gradients]:
    """The gradients of all cases, by one start of the ranks."""
    out = tiny.root / "methods.pt"
    models = {name: str(getattr(tiny, name)) for name in ("student", "untied")}
    command = [sys.executable, "-m", LAUNCHER, "--nproc-per-node=2", "-m", "tests.services.learner.method_gradients"]
    done = subprocess.run(
        [*command, json.dumps(models), str(out)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    formed: dict[str, Gradients] = torch.load(out, weights_only=True)
    return formed


def check_equal(one: Gradients, other: Gradients) -> None:
    assert one.keys() == other.keys()
    norm = torch.stack([gradient.norm() for gradient in one.values()]).norm()
    assert norm > 0
    assert max((one[name] - other[name]).norm() for name in one) < 1e-5 * norm


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_form_the_gradient_of_one(tiny, two_ranks, case):
    model, method, learner = CASES[case]
    student = loaded(str(getattr(tiny, model)), **learner)
    alone = form(student, MethodSection(**method, overlap_top_k=0), [scored()], world_size=1)
    assert all("lora_" in name for name in alone) == ("lora_rank" in learner)
    check_equal(alone, two_ranks[case])


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    ranks = Ranks(LearnerSection(device="cpu"))
    yield ranks
    ranks.close()


def test_a_plan_of_each_trajectory_alone_does_not_wait_for_the_others(tiny, ranks):
    config = load_config(tiny.write_config("early"), ["method.name=random_sign", "method.overlap_top_k=0"], {})
    trainer, (first, *others) = Trainer(config, ranks), scored()
    assert not trainer.needs_whole_step
    trainer.begin(0)
    trainer.learn([first], None)
    assert trainer.result.used == [first.ticket.index]
    trainer.learn(others, None)
    early = {name: cast(DTensor, p.grad).full_tensor() for name, p in trainer.student.named_parameters()}
    student = loaded(str(tiny.student))
    whole = form(student, config.method, [[first, *others]], world_size=1, step=StepInfo(0, config.run.seed))
    check_equal(whole, early)


def test_only_plans_over_the_whole_step_wait_for_it():
    waiting = {name for name, method in METHODS.items() if method.plan is not None and not method.plans_each_alone}
    assert waiting == {"uni_opd", "token_sync"}
