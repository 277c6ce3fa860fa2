"""Every worked number of the methods, value and gradient."""

import math
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from calopd.core.lm_head import ForwardKL, policy_objective
from calopd.core.losses import LOSS_AGG_MODES, clamp_advantage, token_weights
from calopd.core.method_inputs import StepFacts, StepInfo, TokenBatch
from calopd.core.methods import METHODS
from calopd.core.methods.eopd import EOPDSettings, forward_kl_targets
from calopd.core.token_selection import select_tokens
from tests.core.objectives import objective_of

NO_PROBES = torch.empty(0, 0)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tokens_of(student, teacher, **more) -> TokenBatch:
    return TokenBatch(student, teacher, more.pop("probes", torch.empty(0, len(student))), **more)


def advantage(name: str, student, teacher, *, settings: dict | None = None, **more) -> torch.Tensor:
    return objective_of(name, **(settings or {})).advantage(tokens_of(student, teacher, **more))


def test_all_methods_are_there_with_the_papers_settings():
    assert set(METHODS) == {
        "opd", "cal_opd", "exopd", "eopd", "uni_opd", "privileged_opd", "advantage_sync", "token_sync", "tsd_filter",
        "fixed_negative", "random_sign",
    }  # fmt: skip
    unclamped = {name for name, method in METHODS.items() if method.recipe.clamp is None}
    assert unclamped == {"exopd", "uni_opd"}
    assert {name for name, m in METHODS.items() if m.recipe.loss_agg_mode == "token-mean"} == unclamped


def test_each_asks_the_teacher_for_what_it_uses_and_no_more():
    probed = ("c0", "eval+", "eval-")
    asked = {name: method.contexts(probed[1:]) for name, method in METHODS.items()}
    assert asked.pop("cal_opd") == asked.pop("tsd_filter") == probed
    assert asked.pop("privileged_opd") == ("sol+",)
    assert set(asked.values()) == {("c0",)}
    assert METHODS["privileged_opd"].contexts((), measured=True) == ("c0", "sol+")


def test_fixed_negative_does_not_read_the_teacher():
    found = advantage("fixed_negative", t(-2, -0.5), t(-1, -1.5), settings={"magnitude": 0.5})
    assert torch.equal(found, t(-0.5, -0.5))
    with pytest.raises(ValueError, match="magnitude"):
        objective_of("fixed_negative", magnitude=0.0)


def test_random_sign_keeps_the_size_and_draws_both_signs():
    facts = StepFacts([4, 1], ["a", "b"], [400, 3], [True, False], [], step=StepInfo(step=7, seed=1))
    plan = METHODS["random_sign"].plan
    signs = plan(facts, None)[4]["sign"]
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert 0.4 < (signs > 0).double().mean() < 0.6
    student, teacher = torch.randn(400), torch.randn(400)
    found = advantage("random_sign", student, teacher, planned={"sign": signs})
    assert torch.equal(found.abs(), (teacher - student).abs())
    assert torch.equal(found.sign(), signs)
    alone = plan(replace(facts, indices=[4], problem_ids=["a"], lengths=[400], correct=[True]), None)[4]["sign"]
    assert torch.equal(alone, signs), "the draw does not depend on the other trajectories"
    other = plan(replace(facts, step=StepInfo(step=8, seed=1)), None)[4]["sign"]
    assert not torch.equal(other, signs)


def test_exopd_value_and_gradient():
    student, teacher = t(-2, -0.5), t(-1, -1.5)
    tokens = tokens_of(student, teacher, reference_logprobs=t(-1.8, -1))
    assert torch.allclose(objective_of("exopd").advantage(tokens), t(1.2, -1.125))
    own = student.clone().requires_grad_()
    objective_of("exopd").loss(tokens, own, torch.tensor([2])).backward()
    assert torch.allclose(own.grad, t(-0.6, 0.5625))


def test_eopd_value_and_gradient_through_the_chunked_head():
    """The worked sequence, as hidden states of a head that gives exactly its probabilities."""
    student, teacher, entropy = t(-2, -1, -1.5), t(-1, -2, -1.2), t(0.3, 0.8, 1.2)
    q = forward_kl_targets(t(0.5, 0.2).log()[None])[0]
    # Row 3 gives pi = .25 and .05 to the teacher's two tokens; the sampled token is a third one.
    rows = torch.full((3, 5), 1e-9, dtype=torch.float64)
    rows[0, 2], rows[1, 2] = math.exp(-2), math.exp(-1)
    rows[2, 0], rows[2, 1], rows[2, 2] = 0.25, 0.05, math.exp(-1.5)
    rows[:, 4] += 1 - rows.sum(1)
    hidden = rows.log().float().requires_grad_()
    weights = token_weights(torch.tensor([3]), "seq-mean-token-mean")
    gate = (entropy > EOPDSettings().entropy_threshold).float()
    assert gate.tolist() == [0, 0, 1]
    extra = ForwardKL(torch.tensor([[0, 1]]).expand(3, 2), q.float().expand(3, 2), weights * gate)
    a = clamp_advantage(advantage("eopd", student, teacher), 10.0).float()
    objective, scores = policy_objective(
        hidden, torch.eye(5), torch.full((3,), 2), lambda part, own: -weights[part] * a[part], forward_kl=extra, rows=2
    )
    assert scores.forward_kl[2].item() == pytest.approx(1.247864, abs=1e-5)
    assert objective.item() == pytest.approx(0.899288, abs=1e-5)
    objective.backward()
    ours = hidden.grad.clone()

    again = hidden.detach().double().requires_grad_()
    logp = again.log_softmax(-1)
    opd = objective_of("eopd").loss(tokens_of(student, teacher), logp[:, 2], torch.tensor([3]))
    fkl = (q * (q.log() - logp[2, :2])).sum() / 3
    assert opd.item() == pytest.approx(0.483333, abs=1e-5)
    assert fkl.item() == pytest.approx(0.415955, abs=1e-5)
    (opd + fkl).backward()
    assert torch.allclose(ours.double(), again.grad, atol=1e-6)


A_OPD = t(1, -1, 0.1, -0.7, 12)


def test_advantage_sync_scales_then_clamps():
    got = advantage("advantage_sync", torch.zeros(5).double(), A_OPD, step=StepInfo(recorded_ratio=0.875))
    assert torch.allclose(got, t(0.875, -0.875, 0.0875, -0.6125, 10.5))
    assert torch.allclose(clamp_advantage(got, 10.0), t(0.875, -0.875, 0.0875, -0.6125, 10))


def test_token_sync_zeroes_as_many_tokens_of_the_step():
    settings = objective_of("token_sync").settings
    chosen = set()
    for step in range(30):
        seen = StepFacts([0, 1], ["a", "b"], [3, 2], [True, False], [], StepInfo(step, recorded_ratio=0.4))
        plan = METHODS["token_sync"].plan(seen, settings)
        kept = torch.cat([plan[0]["kept"], plan[1]["kept"]])
        got = advantage("token_sync", torch.zeros(5).double(), A_OPD, planned={"kept": kept})
        assert (got == 0).sum() == 2
        assert torch.equal(got[got != 0], A_OPD[got != 0])
        again = METHODS["token_sync"].plan(seen, settings)
        assert torch.equal(again[0]["kept"], plan[0]["kept"])
        chosen.add(tuple(kept.tolist()))
    assert len(chosen) > 5


@pytest.mark.parametrize(("tau", "keep"), [(0.1, [1, 0, 1, 1, 1]), (0.05, [1, 0, 0, 1, 1]), (0.01, [0, 0, 0, 0, 1])])
def test_tsd_filter_keeps_the_stable_tokens_and_their_denominator(tau, keep):
    teacher, deviation = torch.zeros(5).double(), t(0.02, 0.3, 0.08, 0.05, 0.001)
    probes = torch.stack((teacher + deviation, teacher - deviation / 2))
    objective, lengths = objective_of("tsd_filter", deviation_threshold=tau), torch.tensor([5])
    mask = objective.mask(TokenBatch(teacher, teacher, probes), lengths, [])
    assert mask.int().tolist() == keep
    weights = objective.weights(lengths, mask)
    assert weights.sum().item() == pytest.approx(1)
    assert ((weights > 0) == mask).all()


def test_privileged_opd_is_the_privileged_teacher_less_the_student():
    assert torch.allclose(advantage("privileged_opd", t(-2, -1), t(-0.5, -3)), t(1.5, -2))


@given(
    st.sampled_from(sorted(METHODS)),
    st.sampled_from(LOSS_AGG_MODES),
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.data(),
)
def test_no_cut_changes_the_loss_of_any_method(name, mode, lengths, data):
    """Whole step at once, against one trajectory at a time in chunks of two tokens."""
    method, total = METHODS[name], sum(lengths)
    numbers = torch.arange(total, dtype=torch.float64)
    student, teacher = -1 - numbers.sin() ** 2, -1 - (numbers * 1.7).cos() ** 2
    seen = StepFacts(
        indices=list(range(len(lengths))),
        problem_ids=["p"] * len(lengths),
        lengths=lengths,
        correct=[bool(i % 2) for i in range(len(lengths))],
        mean_gaps=[part.mean().item() for part in (teacher - student).split(lengths)],
    )
    objective = objective_of(name, loss_agg_mode=mode)
    step = StepInfo(data.draw(st.integers(0, 9)), recorded_ratio=0.3)
    seen = replace(seen, step=step)
    plan = method.plan(seen, objective.settings) if method.plan else {i: {} for i in range(len(lengths))}
    parts = [
        range(start, start + n)
        for start, n in zip([0, *torch.tensor(lengths).cumsum(0).tolist()], lengths, strict=False)
    ]
    kept = [i for i in range(len(lengths)) if plan[i] is not None]

    def tokens(rows: list[int], members: list[int]) -> TokenBatch:
        planned = {}
        for key in plan[members[0]]:
            planned[key] = torch.cat([plan[i][key].expand(lengths[i]).double() for i in members])
        picked = torch.tensor(rows)
        probes = torch.stack((teacher + 0.07 * numbers.cos(), teacher - 0.02))[:, picked]
        return TokenBatch(student[picked], teacher[picked], probes, teacher[picked] - 0.1, planned, step)

    def summed(members: list[int]) -> tuple[torch.Tensor, int, int]:
        seen_tokens = tokens([row for i in members for row in parts[i]], members)
        sizes = torch.tensor([lengths[i] for i in members])
        mask = objective.mask(seen_tokens, sizes, [])
        weights = objective.weights(sizes, mask).double()
        chunks = [slice(start, start + 2) for start in range(0, len(mask), 2)]
        own = seen_tokens.student_logprobs
        coefficients = [objective.coefficients(seen_tokens.part(rows, own[rows]), weights[rows]) for rows in chunks]
        loss = (torch.cat(coefficients) * own).sum()
        counts = [int(part.any()) for part in mask.split(sizes.tolist())]
        return loss, sum(counts), int(mask.sum())

    whole, trajectories, kept_tokens = summed(kept)
    apart = [summed([i]) for i in kept]
    assert (sum(a[1] for a in apart), sum(a[2] for a in apart)) == (trajectories, kept_tokens)
    divisor = objective.denominator(trajectories, kept_tokens)
    in_pieces = float(sum(a[0] for a in apart) / divisor)
    assert in_pieces == pytest.approx((whole / divisor).item(), rel=1e-5, abs=1e-9)
    everything = tokens([row for i in kept for row in parts[i]], kept)
    defined = objective.loss(everything, everything.student_logprobs, torch.tensor([lengths[i] for i in kept]))
    assert in_pieces == pytest.approx(defined.item(), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(("how", "expected"), [("top-gap", [0, 1, 0, 1]), ("bottom-gap", [1, 0, 1, 0])])
def test_selection_by_gap(how, expected):
    assert select_tokens(t(0.1, -2, 0.3, 1), 0.5, how, "seed").int().tolist() == expected


def test_random_selection_is_seeded_and_never_empty():
    gaps = torch.zeros(10)
    assert select_tokens(gaps, 0.3, "random", "a").sum() == 3
    assert torch.equal(select_tokens(gaps, 0.3, "random", "a"), select_tokens(gaps, 0.3, "random", "a"))
    assert len({tuple(select_tokens(gaps, 0.3, "random", str(i)).tolist()) for i in range(20)}) > 5
    assert select_tokens(gaps, 0.001, "random", "a").sum() == 1
