import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from hypothesis.extra.numpy import arrays

from calopd.core.calibration import calibrated_advantage, retained_ratio, tsd_region, zero_ratio
from calopd.core.method_inputs import TokenBatch
from calopd.core.methods import METHODS, ProbeSettings, opd_advantage

STUDENT = torch.tensor([-2.0, -2, -1, -1, -1, -1], dtype=torch.float64)
TEACHER = torch.tensor([-1.0, -1, -2, -2, -1, -1.5], dtype=torch.float64)
PROBES = torch.tensor(
    [[-0.5, -1.05, -2.4, -1.95, -0.8, -1.5], [-1.1, -1.5, -1.95, -2.2, -1.3, -1.5]], dtype=torch.float64
)


def close(actual: torch.Tensor, expected: list[float]) -> bool:
    return torch.allclose(actual, torch.tensor(expected, dtype=actual.dtype), atol=1e-9)


def test_region_is_the_worked_one():
    region = tsd_region(TEACHER, PROBES, 1.0)
    assert close(TEACHER - region.lower, [0.1, 0.5, 0.4, 0.2, 0.3, 0])
    assert close(region.upper - TEACHER, [0.5, 0, 0.05, 0.05, 0.2, 0])


@pytest.mark.parametrize(
    ("relaxation", "expected", "retained", "zero"),
    [
        (1.0, [0.9, 0.5, -0.95, -0.95, 0, -0.5], 0.84444, 1 / 6),
        (5.0, [0.5, 0, -0.75, -0.75, 0, -0.5], 0.55556, 1 / 3),
    ],
)
def test_cal_opd_is_the_worked_one(relaxation, expected, retained, zero):
    tokens = TokenBatch(STUDENT, TEACHER, PROBES)
    advantage = METHODS["cal_opd"].advantage(tokens, ProbeSettings(relaxation=relaxation))
    assert close(advantage, expected)
    assert retained_ratio(advantage, opd_advantage(tokens), torch.ones(6)).item() == pytest.approx(retained, abs=1e-5)
    assert zero_ratio(advantage, torch.ones(6)).item() == pytest.approx(zero)


def test_upper_edge_may_exceed_zero():
    region = tsd_region(torch.tensor([-0.1]), torch.tensor([[-0.05]]), 5.0)
    assert region.upper.item() == pytest.approx(0.15)


def test_masked_tokens_do_not_count():
    calibrated, raw = torch.tensor([1.0, 0.0, 7.0]), torch.tensor([2.0, 2.0, 7.0])
    mask = torch.tensor([1, 1, 0])
    assert retained_ratio(calibrated, raw, mask).item() == pytest.approx(0.25)
    assert zero_ratio(calibrated, mask).item() == pytest.approx(0.5)


def test_teacher_equal_to_student_withholds_nothing():
    zeros = torch.zeros(4)
    assert retained_ratio(zeros, zeros).item() == 1.0


@pytest.mark.parametrize(
    ("relaxation", "probes"), [(0.99, torch.zeros(1, 3)), (5, torch.zeros(0, 3)), (5, torch.zeros(1, 2))]
)
def test_impossible_regions_are_refused(relaxation, probes):
    with pytest.raises(ValueError, match=r"lambda|probe"):
        tsd_region(torch.zeros(3), probes, relaxation)


# Multiples of 1/64 below 2**10 add and multiply exactly, so that the properties hold without tolerances.
grid = st.integers(-640, 0).map(lambda n: n / 64)
tokens = st.integers(1, 12).flatmap(
    lambda count: st.tuples(
        arrays("float64", count, elements=grid),
        arrays("float64", count, elements=grid),
        st.integers(1, 4).flatmap(lambda probes: arrays("float64", (probes, count), elements=grid)),
    )
)
relaxations = st.integers(4, 40).map(lambda n: n / 4)


def batch(arrays_) -> TokenBatch:
    student, teacher, probes = (torch.from_numpy(array) for array in arrays_)
    return TokenBatch(student, teacher, probes)


@given(tokens, relaxations)
def test_calibration_only_shrinks_and_never_turns(arrays_, relaxation):
    seen = batch(arrays_)
    raw = opd_advantage(seen)
    kept = METHODS["cal_opd"].advantage(seen, ProbeSettings(relaxation=relaxation))
    assert (kept * raw >= 0).all()
    assert (kept.abs() <= raw.abs()).all()


@given(tokens, relaxations)
def test_zero_exactly_inside_the_region(arrays_, relaxation):
    seen = batch(arrays_)
    region = tsd_region(seen.teacher_logprobs, seen.probe_logprobs, relaxation)
    inside = (region.lower <= seen.student_logprobs) & (seen.student_logprobs <= region.upper)
    assert ((calibrated_advantage(region, seen.student_logprobs) == 0) == inside).all()


@given(tokens, relaxations, relaxations)
def test_a_larger_relaxation_never_retains_more(arrays_, one, other):
    seen = batch(arrays_)
    small, large = (
        METHODS["cal_opd"].advantage(seen, ProbeSettings(relaxation=lam)).abs() for lam in sorted((one, other))
    )
    assert (large <= small).all()


@given(tokens, relaxations)
def test_probes_equal_to_c0_give_opd_exactly(arrays_, relaxation):
    seen = batch(arrays_)
    still = TokenBatch(seen.student_logprobs, seen.teacher_logprobs, seen.teacher_logprobs.expand(2, -1))
    assert torch.equal(METHODS["cal_opd"].advantage(still, ProbeSettings(relaxation=relaxation)), opd_advantage(seen))
