"""Metrics are of all response tokens, whatever a method drops, so that methods compare."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from calopd.config.sections import LearnerSection, MethodSection
from calopd.core.method_inputs import StepInfo
from services.learner.accumulator import Accumulator
from services.learner.student import load_student
from tests.services.learner.gradients import trajectories

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def student(tiny):
    return load_student(str(tiny.student), LearnerSection(chunk=64, recompute_activations=False))


def sums_of(student, **method):
    accumulator = Accumulator(student, MethodSection(**method, overlap_top_k=0), StepInfo(), CPU, world_size=1)
    accumulator.add(trajectories()[:8], show_below=8)
    student.zero_grad(set_to_none=True)
    return accumulator.result


@pytest.mark.parametrize("threshold", [1.0, 3.0, 5.0])
def test_a_token_that_tsd_filter_drops_retains_nothing(student, threshold):
    seen = trajectories()[:8]
    result = sums_of(student, name="tsd_filter", deviation_threshold=threshold)
    own = {row["index"]: np.array(row["student_logprobs"]) for row in result.shown}
    kept = raw = dropped = tokens = 0
    for trajectory in seen:
        teacher, *probes = trajectory.scores.logprobs.astype(np.float64)
        gap = np.abs(teacher - own[trajectory.ticket.index])
        keep = np.abs(np.stack(probes) - teacher).max(0) <= threshold
        kept, raw = kept + gap[keep].sum(), raw + gap.sum()
        dropped, tokens = dropped + (~keep).sum(), tokens + len(gap)
    sums = result.sums
    assert 0 < kept < raw
    assert sums.get("kept") / sums.get("raw") == pytest.approx(kept / raw, rel=1e-5)
    assert sums.get("zero") == dropped
    assert (sums.get("tokens"), sums.get("kept_tokens")) == (tokens, tokens - dropped)


def test_entropy_does_not_depend_on_what_is_dropped(student):
    every = sums_of(student, name="opd").sums
    filtered = sums_of(student, name="tsd_filter", deviation_threshold=3.0).sums
    assert filtered.get("entropy") == pytest.approx(every.get("entropy"), rel=1e-6)
    assert filtered.get("raw") == pytest.approx(every.get("raw"), rel=1e-6)


def test_a_trajectory_that_the_plan_drops_is_measured_and_not_learnt_from(student):
    seen = trajectories()[:4]
    section = MethodSection(name="uni_opd", overlap_top_k=0)
    shifted = {"level": torch.tensor(0.5)}

    def gradient(plan, parts):
        accumulator = Accumulator(student, section, StepInfo(), CPU, world_size=1)
        for part in parts:
            accumulator.add(part, plan)
        found = torch.cat([p.grad.flatten() for p in student.parameters()])
        student.zero_grad(set_to_none=True)
        return found, accumulator.result.sums

    plan = {t.ticket.index: shifted if place < 2 else None for place, t in enumerate(seen)}
    some, sums = gradient(plan, [seen])
    alone, _ = gradient(plan, [seen[:2]])
    only_dropped, _ = gradient(plan, [seen[2:]])
    assert torch.allclose(some, alone, atol=1e-6 * float(alone.norm()))
    assert not only_dropped.any()
    assert sums.get("tokens") == sum(len(t.sample.response_ids) for t in seen)
    assert sums.get("kept_trajectories") == 2


def test_the_shown_scores_name_their_context(student):
    shown = sums_of(student, name="opd").shown
    assert list(shown[0]["teacher_logprobs"]) == ["c0"]

    first = trajectories()[0]
    seen = replace(
        first,
        ticket=replace(first.ticket, contexts=("sol+",)),
        scores=replace(first.scores, names=("sol+",), logprobs=first.scores.logprobs[:1]),
    )
    section = MethodSection(name="privileged_opd", overlap_top_k=0)
    accumulator = Accumulator(student, section, StepInfo(), CPU, world_size=1)
    accumulator.add([seen], show_below=99)
    student.zero_grad(set_to_none=True)
    (row,) = accumulator.result.shown
    assert list(row["teacher_logprobs"]) == ["sol+"]
