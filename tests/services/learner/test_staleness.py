"""Trajectories of older policies: corrected if the run allows them, refused if it does not."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from calopd.config.sections import LearnerSection, MethodSection
from calopd.core.errors import StaleTrajectory
from calopd.core.method_inputs import StepInfo
from calopd.core.step_result import StepResult
from calopd.core.types import Trajectory
from services.learner.accumulator import Accumulator
from services.learner.student import load_student
from tests.services.learner.gradients import trajectories

CPU = torch.device("cpu")
STEP = 5


@pytest.fixture(scope="module")
def student(tiny):
    return load_student(str(tiny.student), LearnerSection(chunk=64, recompute_activations=False))


@pytest.fixture(scope="module")
def seen(student) -> list[Trajectory]:
    """Trajectories of the policy of the step, with the log-probabilities that the student has itself."""
    fresh = [replace(t, sample=replace(t.sample, policy_version=STEP)) for t in trajectories()[:6]]
    accumulator = Accumulator(student, MethodSection(overlap_top_k=0), StepInfo(STEP), CPU, world_size=1)
    accumulator.add(fresh, show_below=len(fresh))
    student.zero_grad(set_to_none=True)
    own = {row["index"]: np.array(row["student_logprobs"], np.float32) for row in accumulator.result.shown}
    return [replace(t, sample=replace(t.sample, logprobs=own[t.ticket.index])) for t in fresh]


def learnt(student, given: list[Trajectory], max_staleness: int = 1, **method) -> tuple[torch.Tensor, StepResult]:
    section = MethodSection(**method, overlap_top_k=0)
    accumulator = Accumulator(student, section, StepInfo(STEP), CPU, world_size=1, max_staleness=max_staleness)
    accumulator.add(given)
    gradient = torch.cat([p.grad.flatten() for p in student.parameters()])
    student.zero_grad(set_to_none=True)
    return gradient, accumulator.result


def aged(trajectory: Trajectory, ratio: float, version: int = STEP - 1) -> Trajectory:
    """A trajectory of an older policy, which gave every token `1 / ratio` of the probability that it has now."""
    sample = trajectory.sample
    older = sample.logprobs - np.float32(math.log(ratio))
    return replace(trajectory, sample=replace(sample, policy_version=version, logprobs=older))


@pytest.mark.parametrize(
    ("ratio", "limit", "factor"), [(1.5, 2.0, 1.5), (4.0, 2.0, 2.0), (0.25, 2.0, 0.25), (4.0, "off", 1.0)]
)
def test_a_stale_token_counts_by_its_truncated_ratio(student, seen, ratio, limit, factor):
    fresh, _ = learnt(student, seen)
    stale, result = learnt(student, [aged(t, ratio) for t in seen], importance_limit=limit)
    assert torch.allclose(stale, factor * fresh, atol=1e-5 * float(fresh.norm()))
    sums, tokens = result.sums, sum(len(t.sample.response_ids) for t in seen)
    assert sums.mean("staleness", "tokens") == 1
    assert sums.get("stale_tokens") == tokens
    assert sums.mean("mismatch", "fresh_tokens") is None
    if limit != "off":
        assert sums.mean("importance_ratio", "stale_tokens") == pytest.approx(factor, rel=1e-4)
        assert sums.mean("importance_truncated", "stale_tokens") == (1.0 if ratio > limit else 0.0)


def test_a_fresh_trajectory_beside_a_stale_one_has_no_ratio(student, seen):
    """Also if the sampler's log-probabilities differ from the learner's."""
    first, second = seen[:2]
    alone = learnt(student, [first])[0] + learnt(student, [second])[0]
    both, result = learnt(student, [aged(first, 3.0, version=STEP), aged(second, 1.0)])
    assert torch.allclose(both, alone, atol=1e-5 * float(alone.norm()))
    lengths = [len(t.sample.response_ids) for t in (first, second)]
    assert result.sums.mean("staleness", "tokens") == pytest.approx(lengths[1] / sum(lengths))
    assert result.sums.mean("mismatch", "fresh_tokens") == pytest.approx(math.log(3), rel=1e-5)


@pytest.mark.parametrize(("version", "allowed"), [(STEP - 1, 0), (STEP + 1, 0), (STEP - 3, 2), (STEP + 1, 2)])
def test_a_trajectory_of_another_policy_is_refused(student, seen, version, allowed):
    said = rf"sampled from policy {version}.*step {STEP + 1} learns from .* to {STEP} \(run.max_staleness = {allowed}"
    with pytest.raises(StaleTrajectory, match=said):
        learnt(student, [seen[0], aged(seen[1], 1.0, version)], max_staleness=allowed)


def test_the_first_token_of_a_policy_is_the_earliest_of_all_ranks():
    one, other = StepResult(), StepResult()
    one.add_first_token(3, 20.0)
    one.add_first_token(3, 19.0)
    other.add_first_token(3, 18.5)
    other.add_first_token(4, 30.0)
    one.merge(other)
    assert one.first_tokens == {3: 18.5, 4: 30.0}
