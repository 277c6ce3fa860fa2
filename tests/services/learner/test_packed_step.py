"""A step of the packed learner equals one of plain transformers and autograd, which reads each sequence alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calopd.config.sections import LearnerSection, MethodSection
from calopd.core.method_inputs import StepInfo, StepPlan, TokenBatch
from calopd.core.methods import METHODS
from calopd.core.methods.base import ForwardKLOptions
from calopd.core.types import TopK, Trajectory
from services.learner.accumulator import Accumulator
from services.learner.micro_batch import MicroBatch
from services.learner.student import Student, load_student
from tests.services.learner.gradients import trajectories

CPU = torch.device("cpu")
RECORDED = {"recorded_run": "a run"}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "opd": ("student", {"name": "opd"}, {}),
    "cal_opd": ("student", {}, {"recompute_activations": True}),
    "forward KL": ("student", {"name": "eopd", "entropy_threshold": 1.0, "forward_kl_top_k": 4}, {}),
    "reference and adapters": ("student", {"name": "exopd"}, {"lora_rank": 4, "recompute_activations": True}),
    "privileged context": ("student", {"name": "privileged_opd"}, {}),
    "scaled by a recorded ratio": ("student", {"name": "advantage_sync", **RECORDED}, {}),
    "random tokens of a plan": ("student", {"name": "token_sync", **RECORDED}, {}),
    "tokens of small deviation": ("student", {"name": "tsd_filter", "deviation_threshold": 2.0}, {}),
    "one value per response": ("student", {"name": "uni_opd"}, {}),
    "one shift per response": ("student", {"name": "uni_opd", "margin_mode": "shift"}, {}),
    "a constant": ("student", {"name": "fixed_negative"}, {}),
    "random signs of a plan": ("student", {"name": "random_sign"}, {}),
    "own pass for the selection": ("student", {"selection": "top-gap", "selection_ratio": 0.5}, {}),
    "untied": ("untied", {}, {}),
}
STEP = StepInfo(recorded_ratio=0.4)


def scored() -> list[Trajectory]:
    """Some trajectories with the teacher's entropy and top-k, under c0, two probes and a context with the solution.

    Two problems, right and wrong responses to each.
    """
    draw = np.random.default_rng(1)
    out = []
    for index, trajectory in enumerate(trajectories()[:10]):
        count = len(trajectory.sample.response_ids)
        top = TopK(
            np.stack([draw.choice(390, 4, replace=False).astype(np.int32) for _ in range(count)]),
            np.sort(-draw.uniform(0.1, 4, (count, 4)).astype(np.float32))[:, ::-1],
        )
        entropy = draw.uniform(0, 2, count).astype(np.float32)
        assert trajectory.scores is not None
        names, logprobs = trajectory.scores.names, trajectory.scores.logprobs
        solved = -np.abs(draw.normal(3, 3, (1, count))).astype(np.float32)
        scores = replace(
            trajectory.scores, names=(*names, "sol+"), logprobs=np.concatenate((logprobs, solved)), top_k=top,
            entropy=entropy,
        )  # fmt: skip
        ticket = replace(trajectory.ticket, problem_id=f"p{index % 2}")
        out.append(replace(trajectory, ticket=ticket, scores=scores, correct=index % 5 < 2))
    return out


def alone(lm: Any, trajectory: Trajectory) -> Tensor:
    """[T, V] log-probabilities of one response, from full logits."""
    ids = np.concatenate((trajectory.prompt_ids, trajectory.sample.response_ids))
    logits = lm(torch.from_numpy(ids).long()[None], use_cache=False).logits[0]
    return logits.log_softmax(-1)[len(trajectory.prompt_ids) - 1 : -1]


def plain_loss(student: Student, section: MethodSection, seen: list[Trajectory], plan: StepPlan | None) -> Tensor:
    """The summed loss, before the denominator of the step. The student does not read packed sequences from here on."""
    student.lm.set_attn_implementation("sdpa")
    full = torch.cat([alone(student.lm, trajectory) for trajectory in seen])
    targets = torch.cat([torch.from_numpy(t.sample.response_ids).long() for t in seen])
    own = full.gather(1, targets[:, None]).squeeze(1)
    by_context = torch.cat([torch.from_numpy(t.scores.logprobs) for t in seen], 1)
    base, *probes, solved = by_context
    teacher = solved if section.method.privileged else base
    lengths = torch.tensor([len(t.sample.response_ids) for t in seen])
    planned, kept = planned_values(seen, plan)
    tokens = TokenBatch(own.detach(), teacher, torch.stack(probes), own.detach(), planned, STEP)
    objective = section.objective
    mask = objective.mask(tokens, lengths, [""] * len(seen)) & kept
    weights = objective.weights(lengths, mask)
    loss = (objective.coefficients(tokens, weights) * own).sum()
    if section.method.forward_kl is None:
        return loss
    options: ForwardKLOptions = section.method.forward_kl(objective.settings)
    ids = torch.from_numpy(np.concatenate([t.scores.top_k.ids for t in seen])).long()
    q = torch.from_numpy(np.concatenate([t.scores.top_k.logprobs for t in seen])).softmax(-1)
    opened = torch.from_numpy(np.concatenate([t.scores.entropy for t in seen])) > options.min_entropy
    assert 0 < opened.sum() < len(opened)
    divergence = (q * (q.log() - full.gather(1, ids))).sum(1)
    return loss + (options.weight * weights * opened * divergence).sum()


def planned_values(seen: list[Trajectory], plan: StepPlan | None) -> tuple[dict[str, Tensor], Tensor]:
    """The plan's values of all tokens, and which tokens belong to a trajectory that it keeps."""
    values: dict[str, list[Tensor]] = {}
    kept = []
    names = {name for given in (plan or {}).values() for name in given or {}}
    for trajectory in seen:
        given = {} if plan is None else plan[trajectory.ticket.index]
        empty = torch.zeros(len(trajectory.sample.response_ids))
        kept.append(torch.full(empty.shape, given is not None))
        for name in names:
            values.setdefault(name, []).append(empty + (given or {}).get(name, 0.0))
    return {name: torch.cat(parts) for name, parts in values.items()}, torch.cat(kept)


def gradients(student: Student) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in student.named_parameters() if p.grad is not None}
    student.zero_grad(set_to_none=True)
    return found


def loaded(path: str, **settings: Any) -> Student:
    student = load_student(path, LearnerSection(chunk=64, **{"recompute_activations": False, **settings}))
    torch.manual_seed(0)
    for name, parameter in student.named_parameters():
        if "lora_B" in name:  # zero at first, which would leave the other adapter without a gradient
            torch.nn.init.normal_(parameter, std=0.1)
    return student


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_equal_those_of_sequences_alone(tiny, case):
    model, method, learner = CASES[case]
    student, seen = loaded(str(getattr(tiny, model)), **learner), scored()
    section = MethodSection(**method, overlap_top_k=0)

    def reference(batch: MicroBatch) -> Tensor:
        with torch.no_grad():
            return student(batch.packed, batch.rows_T, batch.targets_T)[1].logprobs

    accumulator = Accumulator(
        student,
        section,
        STEP,
        CPU,
        world_size=1,
        reference=reference if section.method.uses_reference else None,
    )
    plan = None
    if section.method.plan is not None:
        plan = section.method.plan(accumulator.look(seen), section.objective.settings)
    accumulator.add(seen[:6], plan)
    accumulator.add_nothing()
    accumulator.add(seen[6:], plan)
    packed = gradients(student)
    # Selections and weights are per sequence, so that the two parts add up to the whole.
    loss = plain_loss(student, section, seen, plan)
    loss.backward()
    plain = gradients(student)
    assert accumulator.result.sums.get("loss") == pytest.approx(loss.item(), rel=1e-5)
    assert packed.keys() == plain.keys()
    assert all("lora_" in name for name in packed) == ("lora_rank" in learner)
    norm = torch.stack([g.norm() for g in plain.values()]).norm()
    assert norm > 0
    assert max((packed[name] - plain[name]).norm() for name in packed) < 1e-5 * norm


def test_every_method_has_a_case():
    assert {MethodSection(**method).name for _, method, _ in CASES.values()} == set(METHODS)


def test_the_plan_of_the_cases_drops_moves_and_keeps(tiny):
    """Otherwise the cases would prove nothing about what a plan does."""
    section = MethodSection(name="uni_opd")
    looked = Accumulator(loaded(str(tiny.student)), section, STEP, CPU, world_size=1).look(scored())
    plan = METHODS["uni_opd"].plan(looked, section.objective.settings)
    kept = [values for values in plan.values() if values is not None]
    assert 0 < len(kept) < len(plan)
    assert any(values["shift"] > 0 for values in kept)
    assert any(values["shift"] < 0 for values in kept)


@pytest.mark.parametrize("limit", [2**30, 1])
def test_auto_recomputes_only_micro_batches_whose_activations_do_not_fit(tiny, monkeypatch, limit):
    monkeypatch.setattr("services.learner.student.MAX_STORED", limit)
    student = loaded(str(tiny.student), recompute_activations="auto", device="cpu")
    computed = []
    student.lm.model.layers[0].mlp.register_forward_pre_hook(lambda *_: computed.append(1))
    Accumulator(student, MethodSection(overlap_top_k=0), StepInfo(), CPU, world_size=1).add(scored())
    assert len(computed) == (1 if limit > 1 else 2)


def test_a_micro_batch_has_no_padding_and_restarts_positions():
    seen = scored()
    batch = MicroBatch.pack(seen, "c0", ("eval+", "eval-"), CPU)
    lengths = [len(t.prompt_ids) + len(t.sample.response_ids) - 1 for t in seen]
    assert batch.packed.ids.shape == (1, sum(lengths))
    assert torch.equal(batch.packed.positions[0], torch.cat([torch.arange(n) for n in lengths]))
    # A row predicts the token of the next row of its sequence; the last token of a response is no input.
    for part, trajectory, rows in zip(batch.parts(), seen, batch.packed.rows, strict=True):
        followed = batch.packed.ids[0, batch.rows_T[part][:-1] + 1]
        assert torch.equal(followed, torch.from_numpy(trajectory.sample.response_ids[:-1]).long())
        assert batch.rows_T[part][-1] == rows[-1]


def test_facts_for_a_plan_read_the_packed_student(tiny):
    student, seen = loaded(str(tiny.student)), scored()
    section = MethodSection(name="uni_opd")
    facts = Accumulator(student, section, StepInfo(), CPU, world_size=1).look(seen)
    student.lm.set_attn_implementation("sdpa")
    for gap, trajectory in zip(facts.mean_gaps, seen, strict=True):
        targets = torch.from_numpy(trajectory.sample.response_ids).long()[:, None]
        own = alone(student.lm, trajectory).gather(1, targets).squeeze(1)
        assert gap == pytest.approx((trajectory.scores.logprobs[0] - own.detach().numpy()).mean(), abs=1e-5)
