"""The study's numbers: the worked ones, what must hold of any tokens, and that shards merge to one pass exactly."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calopd.core.calibration import calibrated_advantage, retained_ratio, tsd_region, zero_ratio
from calopd.core.tsd.deviation_sums import ARRAYS, StudyPlan, StudySums, TokenColumns
from calopd.core.tsd.relaxation import GRID
from calopd.core.tsd.summary import consistency, prevalence, retention
from calopd.core.tsd.token_forms import form_table, kind, shared, surface_form

CONTEXTS = ("inst+", "inst-", "eval+", "eval-", "own")
VOCABULARY = 7
PROPERTY = settings(max_examples=60, deadline=None)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def sums_of(tokens: TokenColumns, plan: StudyPlan) -> StudySums:
    sums = StudySums(plan, VOCABULARY)
    sums.add(tokens)
    return sums


def test_worked_numbers_of_the_pair():
    plus, minus = floats(0.02, -0.3, 0.005, 0.2, -0.05), floats(0.03, -0.1, 0.02, -0.1, 0)
    base = floats(*[-2.0] * 5)
    plan = StudyPlan.of(["g+", "g-"], [0.01])
    sums = sums_of(TokenColumns(np.zeros(5, np.int32), base, base, [base + plus, base + minus]), plan)
    row = consistency(sums, 0)["g"]
    assert row["joint_tokens"] == 3
    assert row["overlap"] == pytest.approx(0.6)
    assert row["agreement"] == pytest.approx(0.66667, abs=1e-5)
    assert row["sdr"] == pytest.approx(0.518868, abs=1e-5)
    found = prevalence(sums, 0)
    assert [found["contexts"][name]["tokens"] for name in ("g+", "g-")] == [4, 4]
    assert found["groups"]["g"] == {"tokens": 5, "share": 1.0}


def test_worked_numbers_of_the_relaxation():
    student, base = floats(-2, -2, -1, -1, -1, -1), floats(-1, -1, -2, -2, -1, -1.5)
    plus, minus = floats(-0.5, -1.05, -2.4, -1.95, -0.8, -1.5), floats(-1.1, -1.5, -1.95, -2.2, -1.3, -1.5)
    sums = sums_of(TokenColumns(np.zeros(6, np.int32), student, base, [plus, minus]), StudyPlan.of(["g+", "g-"]))
    grid, part = GRID.tolist(), sums.relaxation["g"]
    for relaxation, retained, zero in ((1.0, 0.84444, 1 / 6), (5.0, 0.55556, 1 / 3)):
        assert part.retained()[grid.index(relaxation)] == pytest.approx(retained, abs=1e-5)
        assert part.zero()[grid.index(relaxation)] == pytest.approx(zero)


@st.composite
def tokens(draw: st.DrawFn) -> TokenColumns:
    """Any number of tokens, the teacher moving little or much, often not at all and at times by a threshold exactly."""
    noise = np.random.default_rng(draw(st.integers(0, 2**32)))
    count, scale = draw(st.integers(0, 40)), draw(st.sampled_from((0.01, 0.1, 2.0)))
    base, student = (-noise.exponential(1, count).astype(np.float32) for _ in range(2))
    odd = np.array([0, 0.01, -0.05, 0.1, 5], np.float32)
    moves = (
        np.where(noise.random(count) < 0.3, noise.choice(odd, count), noise.normal(0, scale, count)) for _ in CONTEXTS
    )
    return TokenColumns(
        noise.integers(0, VOCABULARY, count).astype(np.int32),
        np.where(noise.random(count) < 0.2, base, student),
        base,
        [(base + move).astype(np.float32) for move in moves],
    )


@PROPERTY
@given(tokens())
def test_what_holds_of_any_tokens(columns):
    plan = StudyPlan.of(CONTEXTS, unions=[("inst", "eval")])
    sums = sums_of(columns, plan)
    swapped = TokenColumns(
        columns.ids, columns.student, columns.base, [columns.probes[place] for place in (1, 0, 3, 2, 4)]
    )
    mirrored = sums_of(swapped, plan)
    for k, tau in enumerate(plan.taus):
        found = retention(sums, k)
        for one, row in found.items():
            assert row[one] in (1.0, None)
            assert all(value is None or 0 <= value <= 1 for value in row.values())
        assert consistency(sums, k) == consistency(mirrored, k), "which of the two is called + does not matter"
        assert list(consistency(sums, k)) == ["inst", "eval"], "a context alone has nothing to be consistent with"
        for row in consistency(sums, k).values():
            assert all(value is None or 0 <= value <= 1 for key, value in row.items() if key != "joint_tokens")
        for place, probe in enumerate(columns.probes):
            assert sums.significant_CK[place, k] == np.sum(np.abs(probe - columns.base) > tau)
    assert np.all(np.diff(sums.significant_CK, axis=1) <= 0)


@PROPERTY
@given(tokens())
def test_the_grid_is_what_training_would_measure(columns):
    """Up to float32: a token on the very edge of its region may fall on either side."""
    part = sums_of(columns, StudyPlan.of(CONTEXTS)).relaxation["eval"]
    base, student = (torch.from_numpy(values) for values in (columns.base, columns.student))
    probes = torch.from_numpy(np.stack(columns.probes[2:4]))
    for place, relaxation in enumerate(GRID):
        region = tsd_region(base, probes, float(relaxation))
        advantage = calibrated_advantage(region, student)
        edges = torch.minimum((region.lower - student).abs(), (region.upper - student).abs()) < 1e-5
        assert part.retained()[place] == pytest.approx(retained_ratio(advantage, base - student).item(), abs=1e-4)
        open_share = edges.double().mean().item() if len(edges) else 0.0
        assert abs(part.zero()[place] - zero_ratio(advantage).item()) <= open_share + 1e-9


@PROPERTY
@given(st.lists(tokens(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_shards_merge_to_one_pass_exactly(parts, order):
    plan = StudyPlan.of(CONTEXTS)
    rows = zip(*((part.ids, part.student, part.base, *part.probes) for part in parts), strict=True)
    ids, student, base, *probes = map(np.concatenate, rows)
    whole = TokenColumns(ids, student, base, probes)
    merged = StudySums(plan, VOCABULARY)
    order.shuffle(parts)
    for part in parts:
        merged.merge(sums_of(part, plan))
    once = sums_of(whole, plan)
    assert merged.tokens == once.tokens
    for name in ARRAYS:
        assert np.array_equal(getattr(merged, name), getattr(once, name)), name


def test_groups_are_found_by_name_and_unions_checked():
    plan = StudyPlan.of(["eval-", "eval+", "hint"], unions=[("eval", "hint")])
    assert plan.groups == {"eval": (1, 0), "hint": (2,)}
    assert plan.probe_sets["eval + hint"] == (1, 0, 2)
    with pytest.raises(ValueError, match="unknown probe group 'sol'; the study has eval, hint"):
        StudyPlan.of(["eval+", "eval-", "hint"], unions=[("sol",)])


def test_variants_of_a_surface_form_are_one():
    texts = ["Wait", " wait\n", "\u0120WAIT\u010a", "7", "\n", " ", "unused"]
    assert [surface_form(text) for text in texts] == ["wait", "wait", "wait", "7", "\n", " ", "unused"]
    assert [kind(form) for form in ("wait", "let's", "x", "7", "3.5", "\\frac", "=", "\n")] == [
        "word", "word", "letter", "number", "number", "symbol", "symbol", "space",
    ]  # fmt: skip
    count = np.array([3, 2, 1, 4, 5, 6, 0])
    by_level = np.zeros((1, 7, 2), np.int64)
    by_level[0, :3] = [[1, 1], [0, 2], [1, 0]]  # above the first threshold only, above both
    table = form_table(texts, count, by_level, by_level * 0.5)
    place = table.forms.index("wait")
    assert table.count_F[place] == 6
    assert table.significant_FCK[place, 0].tolist() == [5, 3]
    assert table.mean_FCK[place, 0].tolist() == [0.5, 0.5]
    assert "unused" not in table.forms
    assert table.over(5, blanks=True).forms == [" ", "wait"], "more often than the limit, not as often"
    assert table.over(3).forms == ["7", "wait"], "blank forms are not ranked"
    assert [table.forms[f] for f in table.ranked(0, 0)] == ["wait", " ", "\n", "7"]


def test_shared_lists():
    pairs, everywhere = shared({"a": ["x", "y"], "b": ["y", "z"], "c": ["y"]})
    assert pairs["a"] == {"a": 2, "b": 1, "c": 1}
    assert pairs["b"]["a"] == 1
    assert everywhere == 1
