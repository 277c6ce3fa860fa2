"""From trajectories to gradients that add up, and to the sums that a step's metrics are made of."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from calopd.config.sections import MethodSection
from calopd.core.calibration import tsd_region
from calopd.core.contexts import BASE
from calopd.core.lm_head import HeadScores
from calopd.core.losses import clamp_advantage, token_weights
from calopd.core.methods import opd_advantage
from calopd.core.step_metrics import StepResult
from calopd.core.token_selection import select_tokens
from calopd.core.top_k_overlap import top_k_overlap
from calopd.core.types import MethodSettings, Plan, StepFacts, TokenBatch, Trajectory
from services.learner.micro_batch import MicroBatch, forward_kl
from services.learner.student import Student

Scorer = Callable[[MicroBatch], Tensor]
"""[T] log-probabilities of a micro-batch's targets, without a gradient."""


class Accumulator:
    """Adds micro-batches to the gradients of the student and to the sums of one step."""

    def __init__(
        self,
        student: Student,
        section: MethodSection,
        settings: MethodSettings,
        device: torch.device,
        *,
        world_size: int,
        reference: Scorer | None = None,
    ) -> None:
        self._student, self._section, self.settings = student, section, settings
        self._method = section.method
        self._device, self._world_size, self._reference = device, world_size, reference
        self.result = StepResult()

    @property
    def probes(self) -> tuple[str, ...]:
        return self.settings.probes if self._method.uses_probes else ()

    def _pack(self, trajectories: list[Trajectory]) -> MicroBatch:
        return MicroBatch.pack(trajectories, self._method.privileged or BASE, self.probes, self._device)

    def _own(self, batch: MicroBatch) -> Tensor:
        """The student's log-probabilities, before the pass that learns."""
        if self._section.student_logprobs == "rollout":
            return batch.rollout_T
        with torch.no_grad():
            return self._student(batch.ids_BL, batch.rows_T, batch.targets_T)[1].logprobs

    def look(self, trajectories: list[Trajectory]) -> StepFacts:
        """What a plan of the whole step must know of these."""
        gaps: list[float] = []
        if self._method.plan_reads_student:
            batch = self._pack(trajectories)
            apart = batch.teacher_T - self._own(batch)
            gaps = [apart[part].double().mean().item() for part in batch.parts()]
        return StepFacts(
            indices=[t.ticket.index for t in trajectories],
            problem_ids=[t.ticket.problem_id for t in trajectories],
            lengths=[len(t.sample.response_ids) for t in trajectories],
            correct=[t.correct for t in trajectories],
            mean_gaps=gaps,
        )

    def look_at_nothing(self) -> None:
        """Take part in the collectives of a look in which this rank has no trajectory."""
        if self._method.plan_reads_student:
            self._own(MicroBatch.nothing(self._device))

    def add(self, trajectories: list[Trajectory], plan: Plan | None = None, show_below: int = 0) -> None:
        """Forward and backward; tickets with an index below `show_below` are kept for the report."""
        self._count(trajectories)
        if plan is not None:
            trajectories = [t for t in trajectories if plan[t.ticket.index] is not None]
        if not trajectories:
            self.add_nothing()
            return
        batch = self._pack(trajectories)
        before = TokenBatch(
            torch.empty(0),
            batch.teacher_T,
            batch.probes_CT,
            self._reference(batch) if self._reference is not None else None,
            self._planned(batch, trajectories, plan),
        )
        mask = self._mask(batch, trajectories, before)
        weights = token_weights(batch.lengths_B, self._section.aggregation, mask).to(self._device)
        advantages, clamped = (torch.empty(len(weights), device=self._device) for _ in range(2))

        def coefficients(part: slice, logprobs: Tensor) -> Tensor:
            own = batch.rollout_T[part] if self._section.student_logprobs == "rollout" else logprobs
            advantages[part] = self._method.advantage(_cut(before, part, own), self.settings)
            clamped[part] = clamp_advantage(advantages[part], self._section.bound)
            return -weights[part] * clamped[part]

        extra = None
        if self._method.uses_forward_kl:
            extra = forward_kl(
                batch,
                trajectories,
                weights * self.settings.forward_kl_weight,
                top_k=self._section.forward_kl_top_k,
                threshold=self.settings.entropy_threshold,
            )
        measured = any(_measured(t) for t in trajectories)
        loss, student = self._student(
            batch.ids_BL,
            batch.rows_T,
            batch.targets_T,
            coefficients,
            extra,
            self._section.overlap_top_k if measured else 0,
        )
        # FSDP averages over the ranks; the step's loss is a sum.
        (loss * self._world_size).backward()
        if extra is not None and student.forward_kl is not None:
            self.result.sums.add(forward_kl=student.forward_kl * (extra.weights_T > 0), gate_open=extra.weights_T > 0)
        self._measure(batch, trajectories, loss, student, before, advantages, clamped, mask)
        for part, trajectory in zip(batch.parts(), trajectories, strict=True):
            if trajectory.ticket.index < show_below:
                self.result.shown.append(_show(batch, part, trajectory, student, advantages, self.settings))

    def add_nothing(self) -> None:
        """Take part in the collectives of a round in which this rank has no trajectory."""
        nothing = MicroBatch.nothing(self._device)
        if self._reference is not None:
            self._reference(nothing)
        if self._selects_by_gap:
            self._own(nothing)
        loss, _ = self._student(
            nothing.ids_BL, nothing.rows_T, nothing.targets_T, lambda part, logprobs: torch.zeros_like(logprobs)
        )
        loss.backward()

    @property
    def _selects_by_gap(self) -> bool:
        return self._section.selection_ratio < 1 and self._section.selection != "random"

    def _planned(self, batch: MicroBatch, trajectories: list[Trajectory], plan: Plan | None) -> dict[str, Tensor]:
        """The plan's values of these trajectories, a scalar spread over its tokens."""
        if plan is None:
            return {}
        values = [plan[t.ticket.index] or {} for t in trajectories]
        return {
            name: torch.cat([v[name].expand(n) for v, n in zip(values, batch.lengths_B.tolist(), strict=True)]).to(
                self._device
            )
            for name in values[0]
        }

    def _mask(self, batch: MicroBatch, trajectories: list[Trajectory], before: TokenBatch) -> Tensor:
        """[T] tokens that are learnt from."""
        mask = torch.ones(len(batch.targets_T), dtype=torch.bool, device=self._device)
        if self._method.mask is not None:
            mask &= self._method.mask(before, self.settings)
        section = self._section
        if section.selection_ratio < 1:
            gaps = batch.teacher_T - self._own(batch) if self._selects_by_gap else batch.teacher_T
            for part, trajectory in zip(batch.parts(), trajectories, strict=True):
                seed = f"select/{self.settings.seed}/{trajectory.ticket.id}"
                mask[part] &= select_tokens(gaps[part], section.selection_ratio, section.selection, seed)
        return mask

    def _count(self, trajectories: list[Trajectory]) -> None:
        """What the rollouts were like, whether the method keeps them or not."""
        self.result.used += [t.ticket.index for t in trajectories]
        self.result.lengths += [len(t.sample.response_ids) for t in trajectories]
        self.result.sampler = trajectories[0].sampler
        self.result.sums.add(
            trajectories=float(len(trajectories)),
            correct=float(sum(t.correct for t in trajectories)),
            after_think=float(sum(t.answered_after_think for t in trajectories)),
            truncated=float(sum(t.sample.truncated for t in trajectories)),
            staleness=float(sum(self.settings.step - t.sample.policy_version for t in trajectories)),
            seconds_rollout=sum(t.sample.seconds for t in trajectories),
            seconds_teacher=sum(t.scores.seconds for t in trajectories if t.scores),
        )

    def _measure(
        self,
        batch: MicroBatch,
        trajectories: list[Trajectory],
        loss: Tensor,
        student: HeadScores,
        before: TokenBatch,
        advantages: Tensor,
        clamped: Tensor,
        mask: Tensor,
    ) -> None:
        own = batch.rollout_T if self._section.student_logprobs == "rollout" else student.logprobs
        raw = opd_advantage(replace(before, student_logprobs=own))
        assert student.entropy is not None
        self.result.sums.add_tokens(advantages[mask], clamped[mask], raw[mask], student.entropy[mask])
        if len(batch.probes_CT):
            region = tsd_region(batch.teacher_T[mask], batch.probes_CT[:, mask], self.settings.relaxation)
            deviations = (batch.probes_CT - batch.teacher_T)[:, mask]
            self.result.sums.add_region(region, dict(zip(self.settings.probes, deviations, strict=True)))
        kept = torch.stack([mask[part].any() for part in batch.parts()])
        self.result.sums.add(
            loss=loss.detach(),
            kept_trajectories=kept,
            kept_tokens=mask,
            all_tokens=float(len(mask)),
            mismatch=(batch.rollout_T - student.logprobs).abs(),
        )
        for part, trajectory in zip(batch.parts(), trajectories, strict=True):
            if not _measured(trajectory):
                continue
            assert trajectory.scores is not None
            assert trajectory.scores.top_k is not None
            assert student.top_ids is not None
            assert student.top_logprobs is not None
            top = trajectory.scores.top_k
            count = self._section.overlap_top_k
            ids, logprobs = (torch.from_numpy(a[:, :count].copy()).to(self._device) for a in (top.ids, top.logprobs))
            of_part = HeadScores(student.logprobs[part], student.top_ids[part], student.top_logprobs[part])
            tokens, mass = top_k_overlap(ids, logprobs, of_part)
            self.result.sums.add(token_overlap=tokens.mean(), mass_overlap=mass.mean(), overlap_trajectories=1.0)


def _measured(trajectory: Trajectory) -> bool:
    """Whether the teacher's top-k came for all tokens, to be compared with the student's."""
    ticket, scores = trajectory.ticket, trajectory.scores
    options = ticket.score_options
    return options.top_k > 0 and options.top_k_min_entropy is None and scores is not None and scores.top_k is not None


def _cut(tokens: TokenBatch, part: slice, student_logprobs: Tensor) -> TokenBatch:
    """A chunk of the tokens, now that the student's log-probabilities of it are known."""
    reference = tokens.reference_logprobs
    return TokenBatch(
        student_logprobs,
        tokens.teacher_logprobs[part],
        tokens.probe_logprobs[:, part],
        None if reference is None else reference[part],
        {name: values[part] for name, values in tokens.planned.items()},
    )


def _show(
    batch: MicroBatch,
    part: slice,
    trajectory: Trajectory,
    student: HeadScores,
    advantages: Tensor,
    settings: MethodSettings,
) -> dict[str, Any]:
    """A line of trajectories.jsonl: what the report colours."""
    rows = {BASE: batch.teacher_T[part].tolist()}
    if len(batch.probes_CT):
        rows |= {name: row[part].tolist() for name, row in zip(settings.probes, batch.probes_CT, strict=True)}
    return {
        "index": trajectory.ticket.index,
        "problem_id": trajectory.ticket.problem_id,
        "correct": trajectory.correct,
        "response_ids": trajectory.sample.response_ids.tolist(),
        "student_logprobs": student.logprobs[part].tolist(),
        "teacher_logprobs": rows,
        "advantage": advantages[part].tolist(),
    }
