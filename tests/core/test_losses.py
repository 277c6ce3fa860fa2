import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from calopd.core.losses import LOSS_AGG_MODES, clamp_advantage, denominator, token_weights
from calopd.core.method_inputs import TokenBatch
from tests.core.objectives import objective_of

STUDENT = torch.tensor([-2, -1, -0.5, -0.2, -12.5], dtype=torch.float64)
TEACHER = torch.tensor([-1, -2, -0.4, -0.9, -0.5], dtype=torch.float64)
LENGTHS = torch.tensor([3, 2])


TOKENS = TokenBatch(STUDENT, TEACHER, torch.empty(0, 5))


def test_opd_advantages_are_the_worked_ones():
    objective = objective_of("opd")
    advantage = objective.advantage(TOKENS)
    assert torch.allclose(advantage, torch.tensor([1, -1, 0.1, -0.7, 12], dtype=torch.float64))
    clamped = torch.tensor([1, -1, 0.1, -0.7, 10], dtype=torch.float64)
    assert torch.allclose(objective.clamped(advantage), clamped)
    assert torch.equal(objective.coefficients(TOKENS, torch.full((5,), 0.5)), -0.5 * objective.clamped(advantage))
    assert clamp_advantage(torch.tensor([-12.0]), 10.0).item() == -10


@pytest.mark.parametrize(
    ("mode", "clamp", "loss"),
    [
        ("seq-mean-token-mean", 10.0, 31.39),
        ("seq-mean-token-mean", None, 37.64),
        ("token-mean", 10.0, 25.182),
        ("seq-mean-token-sum", 10.0, 62.955),
    ],
)
def test_losses_are_the_worked_ones(mode, clamp, loss):
    objective = objective_of("opd", loss_agg_mode=mode, clamp=clamp)
    assert objective.loss(TOKENS, STUDENT, LENGTHS).item() == pytest.approx(loss, abs=1e-6)


def test_gradient_is_the_worked_one():
    student = STUDENT.clone().requires_grad_()
    objective_of("opd").loss(TOKENS, student, LENGTHS).backward()
    expected = torch.tensor([-0.166667, 0.166667, -0.016667, 0.175, -2.5], dtype=torch.float64)
    assert torch.allclose(student.grad, expected, atol=1e-6)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.sampled_from(LOSS_AGG_MODES), st.data())
def test_any_cut_into_micro_batches_gives_the_loss_of_the_step(lengths, mode, data):
    total = sum(lengths)
    numbers = torch.arange(total, dtype=torch.float64)
    advantages, logprobs = torch.sin(numbers), -1 - torch.cos(numbers) ** 2
    tokens = TokenBatch(logprobs, logprobs + advantages, torch.empty(0, total))
    cuts = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    parts: list[list[int]] = [[]]
    for i, cut in enumerate(cuts):
        if cut and parts[-1]:
            parts.append([])
        parts[-1].append(i)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    summed = torch.zeros((), dtype=torch.float64)
    for part in parts:
        rows = slice(int(starts[part[0]]), int(starts[part[-1] + 1]))
        weights = token_weights(torch.tensor([lengths[i] for i in part]), mode).double()
        summed += (weights * -advantages[rows] * logprobs[rows]).sum()
    whole = objective_of("opd", loss_agg_mode=mode).loss(tokens, logprobs, torch.tensor(lengths))
    assert (summed / denominator(len(lengths), total, mode)).item() == pytest.approx(whole.item(), rel=1e-6, abs=1e-9)
