from dataclasses import replace

import pytest
import torch

from calopd.core.calibration import Region
from calopd.core.lm_head import HeadScores
from calopd.core.method_inputs import StepFacts
from calopd.core.step_metrics import step_line
from calopd.core.step_result import MeasuredStep, StepResult, StepSums
from calopd.core.top_k_overlap import top_k_overlap


def test_overlap_is_the_worked_one():
    teacher_ids, teacher = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[0.6, 0.2, 0.1, 0.05]]).log()
    student = HeadScores(
        torch.zeros(1), top_ids=torch.tensor([[2, 1, 5, 4]]), top_logprobs=torch.tensor([[0.5, 0.3, 0.1, 0.02]]).log()
    )
    tokens, mass = top_k_overlap(teacher_ids, teacher, student)
    assert tokens.item() == pytest.approx(0.75)
    assert mass.item() == pytest.approx(0.52)


def sums_of(advantage: list[float], raw: list[float]) -> StepSums:
    sums = StepSums()
    kept, whole = torch.tensor(advantage), torch.tensor(raw)
    sums.add_tokens(kept, kept.clamp(-10, 10), whole, torch.ones(len(raw)))
    return sums


def line_of(sums: StepSums, *probes: str) -> dict:
    """The line of a step with these sums."""
    measured = MeasuredStep(
        result=StepResult(sums), step=0, epoch=0, learning_rate=0.1, gradient_norm=1.0, denominator=1, missing=0,
        seconds=2.0, idle_seconds=0.5,
    )  # fmt: skip
    return step_line(measured, probes)


def test_ratios_are_of_global_sums_not_means_of_ratios():
    one, other = sums_of([0.0], [1.0]), sums_of([12.0, -3.0, 0.0], [12.0, -3.0, 4.0])
    one.merge(other)
    ratios = line_of(one)
    assert ratios["retained_ratio"] == pytest.approx(15 / 20)
    assert ratios["zero_ratio"] == pytest.approx(2 / 4)
    assert ratios["clamped_share"] == pytest.approx(1 / 4)
    assert ratios["entropy"] == pytest.approx(1)


def test_a_teacher_equal_to_the_student_is_no_division_by_zero():
    ratios = line_of(sums_of([0.0, 0.0], [0.0, 0.0]))
    assert ratios["retained_ratio"] == 1.0
    assert ratios["zero_ratio"] == 1.0


def test_what_was_not_measured_is_none():
    assert line_of(sums_of([1.0], [1.0]))["top16_token_overlap"] is None


def test_the_overlap_has_its_standard_error_over_trajectories():
    sums, more = StepSums(), StepSums()
    values = [0.6, 0.7, 0.9, 0.64]
    for part, value in zip((sums, more, sums, more), values, strict=True):
        part.add_overlap(torch.tensor(value), torch.tensor(value / 2))
    sums.merge(more)
    line = line_of(sums)
    error = torch.tensor(values, dtype=torch.float64).std().item() / 2
    assert line["top16_token_overlap_error"] == pytest.approx(error)
    assert line["top16_mass_overlap_error"] == pytest.approx(error / 2)
    alone = StepSums()
    alone.add_overlap(torch.tensor(0.6), torch.tensor(0.5))
    assert line_of(alone)["top16_token_overlap_error"] is None


def test_region_width_and_deviations_are_means_over_tokens():
    sums = sums_of([1.0, 1.0], [1.0, 1.0])
    sums.add_region(Region(torch.tensor([-2.0, -1]), torch.tensor([-1.0, -1])), {"eval+": torch.tensor([0.5, -0.1])})
    assert line_of(sums)["region_width"] == pytest.approx(0.5)
    assert line_of(sums, "eval+")["deviation_eval+"] == pytest.approx(0.2)


def test_facts_of_micro_batches_merge_in_the_order_of_their_tickets():
    first = StepFacts([3, 0], ["d", "a"], [30, 10], [True, False], [0.3, 0.0])
    second = StepFacts([2, 1], ["c", "b"], [20, 15], [False, True], [0.2, 0.1])
    expected = StepFacts(
        [0, 1, 2, 3], ["a", "b", "c", "d"], [10, 15, 20, 30], [False, True, False, True], [0.0, 0.1, 0.2, 0.3]
    )
    assert StepFacts.merge([first, second]) == expected
    without_gaps = [replace(part, mean_gaps=[]) for part in (first, second)]
    assert StepFacts.merge(without_gaps) == replace(expected, mean_gaps=[])
