"""The importance ratio of tokens that an older policy sampled."""

import math

import pytest
import torch

from calopd.core.losses import importance_ratio
from calopd.core.method_inputs import TokenBatch
from tests.core.objectives import objective_of

NOW = torch.tensor([-1, -2, -0.5, -3], dtype=torch.float64)
THEN = torch.tensor([-1.5, -1.2, -0.9, -4.5], dtype=torch.float64)
TEACHER = torch.tensor([-0.5, -2.5, -0.5, -1], dtype=torch.float64)
STALE = torch.tensor([True, True, False, True])
LENGTHS = torch.tensor([2, 2])


def test_the_worked_ratios():
    """exp(.5), exp(-.8), 1 for a fresh token, exp(1.5) = 4.48 truncated to 2."""
    expected = torch.tensor([1.648721, 0.449329, 1, 2], dtype=torch.float64)
    assert torch.allclose(importance_ratio(NOW, THEN, STALE, 2.0), expected, atol=1e-6)
    assert torch.equal(importance_ratio(NOW, THEN, STALE, None), torch.ones(4, dtype=torch.float64))


def test_a_probability_that_vanished_or_exploded_stays_finite():
    now, then = torch.tensor([-2_000.0, 0.0]), torch.tensor([0.0, -2_000.0])
    assert importance_ratio(now, then, torch.ones(2, dtype=torch.bool), 2.0).tolist() == [0.0, 2.0]


def test_the_worked_loss_and_gradient():
    """A = [.5, -.5, 0, 2]; seq-mean-token-mean: dL/dlogpi = -rho A / (2 * 2)."""
    objective = objective_of("opd")
    tokens, ratio = TokenBatch(NOW, TEACHER, torch.empty(0, 4)), importance_ratio(NOW, THEN, STALE, 2.0)
    student = NOW.clone().requires_grad_()
    loss = objective.loss(tokens, student, LENGTHS, ratio_T=ratio)
    loss.backward()
    assert torch.allclose(student.grad, torch.tensor([-0.206090, 0.056166, 0, -1], dtype=torch.float64), atol=1e-6)
    assert loss.item() == pytest.approx(3.093758, abs=1e-6)


def test_the_ratio_multiplies_the_clamped_advantage():
    tokens = TokenBatch(torch.tensor([-14.0]), torch.tensor([-1.0]), torch.empty(0, 1))
    coefficient = objective_of("opd").coefficients(tokens, torch.ones(1), torch.tensor([1.5]))
    assert coefficient.item() == -15.0


def test_without_truncation_the_expected_gradient_is_that_of_the_current_policy():
    """sum_v pi_old(v) rho(v) A(v) grad log pi(v) = sum_v pi(v) A(v) grad log pi(v), for every vocabulary entry v."""
    logits = torch.linspace(-1, 1, 7, dtype=torch.float64).requires_grad_()
    old = torch.sin(torch.arange(7.0, dtype=torch.float64)).log_softmax(0)
    advantage = torch.cos(torch.arange(7.0, dtype=torch.float64))
    now = logits.log_softmax(0)
    ratio = importance_ratio(now.detach(), old, torch.ones(7, dtype=torch.bool), math.inf)
    (corrected,) = torch.autograd.grad((old.exp() * ratio * advantage * now).sum(), logits, retain_graph=True)
    (wanted,) = torch.autograd.grad((now.detach().exp() * advantage * now).sum(), logits)
    assert torch.allclose(corrected, wanted, atol=1e-12)
