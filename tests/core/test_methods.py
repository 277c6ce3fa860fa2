"""Every worked number of the methods, value and gradient."""

import math
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from calopd.config import load_config
from calopd.core.errors import ConfigError
from calopd.core.lm_head import ForwardKL, policy_objective
from calopd.core.losses import LOSS_AGG_MODES, clamp_advantage, denominator, step_loss, token_weights
from calopd.core.methods import METHODS
from calopd.core.methods.eopd import forward_kl_targets
from calopd.core.methods.uni_opd import balanced, shifts
from calopd.core.token_selection import select_tokens
from calopd.core.types import MethodSettings, StepFacts, TokenBatch

NO_PROBES = torch.empty(0, 0)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def advantage(name: str, student, teacher, settings=None, **more) -> torch.Tensor:
    probes = more.pop("probes", torch.empty(0, len(student)))
    return METHODS[name].advantage(TokenBatch(student, teacher, probes, **more), settings or MethodSettings())


def test_all_nine_are_there_with_the_papers_settings():
    assert set(METHODS) == {
        "opd", "cal_opd", "exopd", "eopd", "uni_opd", "privileged_opd", "advantage_sync", "token_sync", "tsd_filter",
    }  # fmt: skip
    unclamped = {name for name, method in METHODS.items() if method.clamp is None}
    assert unclamped == {"exopd", "uni_opd"}
    assert {name for name, m in METHODS.items() if m.loss_agg_mode == "token-mean"} == unclamped


def test_each_asks_the_teacher_for_what_it_uses_and_no_more():
    settings = MethodSettings()
    asked = {name: method.contexts(settings) for name, method in METHODS.items()}
    probed = ("c0", "eval+", "eval-")
    assert asked.pop("cal_opd") == asked.pop("tsd_filter") == probed
    assert asked.pop("privileged_opd") == ("sol+",)
    assert set(asked.values()) == {("c0",)}
    assert METHODS["privileged_opd"].contexts(settings, measured=True) == ("c0", "sol+")


def test_exopd_value_and_gradient():
    student, teacher = t(-2, -0.5), t(-1, -1.5)
    got = advantage("exopd", student, teacher, reference_logprobs=t(-1.8, -1))
    assert torch.allclose(got, t(1.2, -1.125))
    own = student.clone().requires_grad_()
    step_loss(got, own, torch.tensor([2]), "token-mean").backward()
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
    gate = (entropy > MethodSettings().entropy_threshold).float()
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
    opd = step_loss(a.double(), logp[:, 2], torch.tensor([3]), "seq-mean-token-mean")
    fkl = (q * (q.log() - logp[2, :2])).sum() / 3
    assert opd.item() == pytest.approx(0.483333, abs=1e-5)
    assert fkl.item() == pytest.approx(0.415955, abs=1e-5)
    (opd + fkl).backward()
    assert torch.allclose(ours.double(), again.grad, atol=1e-6)


FACTS = StepFacts(
    indices=[0, 1, 2, 3],
    problem_ids=["p"] * 4,
    lengths=[2, 3, 2, 2],
    correct=[True, True, False, False],
    mean_gaps=[-0.1, -0.3, 0.1, -0.1],
)
GAPS = [t(0.1, -0.3), t(-0.4, -0.2, -0.3), t(0.2, 0), t(-0.1, -0.1)]


def uni(mode: str) -> list[torch.Tensor]:
    settings = MethodSettings(margin_mode=mode)
    plan = METHODS["uni_opd"].plan(FACTS, settings)
    out = []
    for index, gap in enumerate(GAPS):
        planned = {name: value.expand(len(gap)) for name, value in plan[index].items()}
        out.append(advantage("uni_opd", torch.zeros(len(gap)).double(), gap, settings, planned=planned))
    return out


def test_uni_opd_is_the_worked_one():
    assert [gap.mean().item() for gap in GAPS] == pytest.approx(FACTS.mean_gaps)
    for got, level in zip(uni("broadcast"), [0.2, 0, -0.2, -0.4], strict=True):
        assert torch.allclose(got.double(), torch.full_like(got, level).double(), atol=1e-6)
    expected = [t(0.4, 0), t(-0.1, 0.1, 0), t(-0.1, -0.3), t(-0.4, -0.4)]
    for got, wanted in zip(uni("shift"), expected, strict=True):
        assert torch.allclose(got.double(), wanted, atol=1e-6)


def test_uni_opd_gradient_of_token_mean():
    own = torch.cat([torch.zeros(len(g)) for g in GAPS]).double().requires_grad_()
    step_loss(torch.cat(uni("shift")).double(), own, torch.tensor(FACTS.lengths), "token-mean").backward()
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
    kept = balanced(seen, MethodSettings(step=step))
    right = sum(seen.correct[i] for i in kept)
    wrong = len(kept) - right
    total_right = sum(seen.correct)
    total_wrong = len(seen.correct) - total_right
    if total_right and total_wrong:
        assert right == wrong == min(total_right, total_wrong)
    else:
        assert len(kept) == len(seen.correct)
    assert kept == balanced(seen, MethodSettings(step=step))


@given(facts)
def test_the_new_margin_is_delta_exactly_where_it_moved(seen):
    kept = balanced(seen, MethodSettings())
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
    wrong = [i for i in balanced(seen, MethodSettings()) if not seen.correct[i]]
    assert sorted(seen.problem_ids[i] for i in wrong) == ["a", "b"]


A_OPD = t(1, -1, 0.1, -0.7, 12)


def test_advantage_sync_scales_then_clamps():
    settings = MethodSettings(recorded_ratio=0.875)
    got = advantage("advantage_sync", torch.zeros(5).double(), A_OPD, settings)
    assert torch.allclose(got, t(0.875, -0.875, 0.0875, -0.6125, 10.5))
    assert torch.allclose(clamp_advantage(got, 10.0), t(0.875, -0.875, 0.0875, -0.6125, 10))


def test_token_sync_zeroes_as_many_tokens_of_the_step():
    seen = StepFacts([0, 1], ["a", "b"], [3, 2], [True, False], [])
    chosen = set()
    for step in range(30):
        settings = MethodSettings(recorded_ratio=0.4, step=step)
        plan = METHODS["token_sync"].plan(seen, settings)
        kept = torch.cat([plan[0]["kept"], plan[1]["kept"]])
        got = advantage("token_sync", torch.zeros(5).double(), A_OPD, settings, planned={"kept": kept})
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
    tokens = TokenBatch(teacher, teacher, probes)
    mask = METHODS["tsd_filter"].mask(tokens, MethodSettings(deviation_threshold=tau))
    assert mask.int().tolist() == keep
    weights = token_weights(torch.tensor([5]), "seq-mean-token-mean", mask)
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
    settings = MethodSettings(recorded_ratio=0.3, step=data.draw(st.integers(0, 9)))
    plan = method.plan(seen, settings) if method.plan else {i: {} for i in range(len(lengths))}
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
        return TokenBatch(student[picked], teacher[picked], probes, teacher[picked] - 0.1, planned)

    def summed(members: list[int]) -> tuple[torch.Tensor, int, int]:
        seen_tokens = tokens([row for i in members for row in parts[i]], members)
        mask = (
            method.mask(seen_tokens, settings) if method.mask else torch.ones(len(seen_tokens.teacher_logprobs)).bool()
        )
        weights = token_weights(torch.tensor([lengths[i] for i in members]), mode, mask).double()
        loss = (weights * -method.advantage(seen_tokens, settings) * seen_tokens.student_logprobs).sum()
        counts = [int(part.any()) for part in mask.split([lengths[i] for i in members])]
        return loss, sum(counts), int(mask.sum())

    whole, trajectories, kept_tokens = summed(kept)
    apart = [summed([i]) for i in kept]
    assert (sum(a[1] for a in apart), sum(a[2] for a in apart)) == (trajectories, kept_tokens)
    divisor = max(1, denominator(trajectories, kept_tokens, mode))
    assert (sum(a[0] for a in apart) / divisor).item() == pytest.approx((whole / divisor).item(), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(("how", "expected"), [("top-gap", [0, 1, 0, 1]), ("bottom-gap", [1, 0, 1, 0])])
def test_selection_by_gap(how, expected):
    assert select_tokens(t(0.1, -2, 0.3, 1), 0.5, how, "seed").int().tolist() == expected


def test_random_selection_is_seeded_and_never_empty():
    gaps = torch.zeros(10)
    assert select_tokens(gaps, 0.3, "random", "a").sum() == 3
    assert torch.equal(select_tokens(gaps, 0.3, "random", "a"), select_tokens(gaps, 0.3, "random", "a"))
    assert len({tuple(select_tokens(gaps, 0.3, "random", str(i)).tolist()) for i in range(20)}) > 5
    assert select_tokens(gaps, 0.001, "random", "a").sum() == 1


MINE = """
from calopd.core.methods import cal_opd
from calopd.core.methods.base import Method

def advantage(tokens, settings):
    return 0.5 * cal_opd.advantage(tokens, settings)

METHOD = Method(name="half_cal", advantage=advantage, uses_probes=True)
"""
BASE_CONFIG = "[data]\ntrain='t'\n[student]\npath='s'\n[teacher]\npath='t'\n"


def test_a_method_of_ones_own_is_found_by_name(tmp_path):
    file, config = tmp_path / "mine.py", tmp_path / "c.toml"
    file.write_text(MINE)
    config.write_text(BASE_CONFIG)
    try:
        loaded = load_config(config, [f'method.file="{file}"', "method.name=half_cal"], {})
        assert loaded.method.method.contexts(loaded.method.settings) == ("c0", "eval+", "eval-")
        file.write_text("METHOD = 1")
        with pytest.raises(ConfigError, match="expected a METHOD"):
            load_config(config, [f'method.file="{file}"'], {})
    finally:
        METHODS.pop("half_cal", None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method.name=token_sync"], "follows a recorded Cal-OPD run"),
        (["method.name=uni_opd"], "set learner.samples"),
        (['method.file="no.py"'], "no Python file there"),
    ],
)
def test_what_a_method_lacks_is_said_before_anything_starts(tmp_path, settings, message):
    file = Path(tmp_path / "c.toml")
    file.write_text(BASE_CONFIG)
    with pytest.raises(ConfigError, match=message):
        load_config(file, settings, {})
