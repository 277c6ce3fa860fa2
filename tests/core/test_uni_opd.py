"""The worked numbers of Uni-OPD, and what must hold of any step: balance, margins, draws."""

from dataclasses import replace
from typing import Literal

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from calopd.core.method_inputs import StepFacts, StepInfo, TokenBatch
from calopd.core.methods import METHODS
from calopd.core.methods.uni_opd import UniOPDSettings, balanced, shifts
from tests.core.objectives import objective_of
from tests.core.test_methods import t, tokens_of

FACTS = StepFacts(
    indices=[0, 1, 2, 3],
    problem_ids=["p"] * 4,
    lengths=[2, 3, 2, 2],
    correct=[True, True, False, False],
    mean_gaps=[-0.1, -0.3, 0.1, -0.1],
)
GAPS = [t(0.1, -0.3), t(-0.4, -0.2, -0.3), t(0.2, 0), t(-0.1, -0.1)]


def uni_tokens(mode: Literal["broadcast", "shift"]) -> list[TokenBatch]:
    """The worked responses, with what the plan says about them."""
    plan = METHODS["uni_opd"].plan(FACTS, UniOPDSettings(margin_mode=mode))
    out = []
    for index, gap in enumerate(GAPS):
        planned = {name: value.expand(len(gap)) for name, value in plan[index].items()}
        out.append(tokens_of(torch.zeros(len(gap)).double(), gap, planned=planned))
    return out


def uni(mode: Literal["broadcast", "shift"]) -> list[torch.Tensor]:
    return [objective_of("uni_opd", margin_mode=mode).advantage(tokens) for tokens in uni_tokens(mode)]


def test_uni_opd_is_the_worked_one():
    assert [gap.mean().item() for gap in GAPS] == pytest.approx(FACTS.mean_gaps)
    for got, level in zip(uni("broadcast"), [0.2, 0, -0.2, -0.4], strict=True):
        assert torch.allclose(got.double(), torch.full_like(got, level).double(), atol=1e-6)
    expected = [t(0.4, 0), t(-0.1, 0.1, 0), t(-0.1, -0.3), t(-0.4, -0.4)]
    for got, wanted in zip(uni("shift"), expected, strict=True):
        assert torch.allclose(got.double(), wanted, atol=1e-6)


def test_uni_opd_gradient_of_token_mean():
    own = torch.cat([torch.zeros(len(g)) for g in GAPS]).double().requires_grad_()
    parts = uni_tokens("shift")
    planned = {name: torch.cat([part.planned[name] for part in parts]) for name in parts[0].planned}
    tokens = tokens_of(own.detach(), torch.cat(GAPS), planned=planned)
    objective_of("uni_opd", margin_mode="shift").loss(tokens, own, torch.tensor(FACTS.lengths)).backward()
    assert torch.allclose(own.grad, -t(0.4, 0, -0.1, 0.1, 0, -0.1, -0.3, -0.4, -0.4) / 9, atol=1e-6)


facts = st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.floats(-2, 2)), min_size=1, max_size=40).map(
    lambda rows: StepFacts(
        indices=list(range(len(rows))),
        problem_ids=[row[0] for row in rows],
        lengths=[1] * len(rows),
        correct=[row[1] for row in rows],
        mean_gaps=[row[2] for row in rows],
    )
)


@given(facts, st.integers(0, 5))
def test_balance_keeps_the_minority_whole_and_the_classes_equal(seen, step):
    seen = replace(seen, step=StepInfo(step))
    kept = balanced(seen, UniOPDSettings())
    right = sum(seen.correct[i] for i in kept)
    wrong = len(kept) - right
    total_right = sum(seen.correct)
    total_wrong = len(seen.correct) - total_right
    if total_right and total_wrong:
        assert right == wrong == min(total_right, total_wrong)
    else:
        assert len(kept) == len(seen.correct)
    assert kept == balanced(seen, UniOPDSettings())


@given(facts)
def test_the_new_margin_is_delta_exactly_where_it_moved(seen):
    kept = balanced(seen, UniOPDSettings())
    moved = shifts(seen, kept, 0.4)
    for problem in set(seen.problem_ids):
        members = [i for i in kept if seen.problem_ids[i] == problem]
        sides = [[i for i in members if seen.correct[i] is side] for side in (True, False)]
        if not all(sides):
            assert all(moved[i] == 0 for i in members)
            continue
        right, wrong = ([seen.mean_gaps[i] + moved[i] for i in side] for side in sides)
        margin = sum(right) / len(right) - sum(wrong) / len(wrong)
        if any(moved[i] for i in members):
            assert margin == pytest.approx(0.4)
        else:
            assert margin >= 0.4 - 1e-9


def test_the_majority_is_drawn_evenly_over_the_problems():
    seen = StepFacts(
        indices=list(range(12)),
        problem_ids=["a"] * 8 + ["b"] * 4,
        lengths=[1] * 12,
        correct=[False] * 10 + [True] * 2,
        mean_gaps=[0.0] * 12,
    )
    wrong = [i for i in balanced(seen, UniOPDSettings()) if not seen.correct[i]]
    assert sorted(seen.problem_ids[i] for i in wrong) == ["a", "b"]
