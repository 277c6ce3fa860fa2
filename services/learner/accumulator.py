"""From trajectories to summed gradients, and to the sums that the metrics of a step are computed from."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from calopd.config.sections import MethodSection
from calopd.core.activity import add_readings
from calopd.core.calibration import tsd_region
from calopd.core.contexts import BASE
from calopd.core.errors import StaleTrajectory
from calopd.core.lm_head import HeadScores
from calopd.core.method_inputs import StepFacts, StepInfo, StepPlan, TokenBatch
from calopd.core.methods import ProbeSettings, opd_advantage
from calopd.core.step_result import StepResult
from calopd.core.top_k_overlap import top_k_overlap
from calopd.core.types import Trajectory
from services.learner.micro_batch import MicroBatch, forward_kl
from services.learner.student import HeadObjective, Student

Scorer = Callable[[MicroBatch], Tensor]
"""[T] log-probabilities of a micro-batch's targets, without a gradient."""


class Accumulator:
    """Adds micro-batches to the gradients of the student and to the result of one step."""

    def __init__(
        self,
        student: Student,
        section: MethodSection,
        step: StepInfo,
        device: torch.device,
        *,
        world_size: int,
        reference: Scorer | None = None,
        max_staleness: int = 0,
    ) -> None:
        self._student, self._section, self._step = student, section, step
        self._method, self._objective = section.method, section.objective
        self._base, self._probes = section.method.privileged or BASE, section.probe_contexts
        self._device, self._world_size, self._reference = device, world_size, reference
        self._max_staleness = max_staleness
        self.result = StepResult()

    def _pack(self, trajectories: list[Trajectory]) -> MicroBatch:
        for trajectory in trajectories:
            self._check_staleness(trajectory)
        return MicroBatch.pack(trajectories, self._base, self._probes, self._device)

    def _check_staleness(self, trajectory: Trajectory) -> None:
        step, version = self._step.step, trajectory.sample.policy_version
        if not 0 <= step - version <= self._max_staleness:
            raise StaleTrajectory(
                f"ticket {trajectory.ticket.id} was sampled from policy {version} by {trajectory.worker}; step "
                f"{step + 1} learns from policies {max(0, step - self._max_staleness)} to {step} (run.max_staleness = "
                f"{self._max_staleness}): refused"
            )

    def _ages(self, batch: MicroBatch, trajectories: list[Trajectory]) -> Tensor:
        """[T]: by how many versions the policy of each token is older than the student."""
        ages = torch.tensor([self._step.step - t.sample.policy_version for t in trajectories])
        return ages.repeat_interleave(batch.lengths_B).to(self._device)

    def _own(self, batch: MicroBatch) -> Tensor:
        """The student's log-probabilities, before the pass that learns."""
        if self._section.student_logprobs == "rollout":
            return batch.rollout_T
        with torch.no_grad():
            return self._student(batch.packed, batch.rows_T, batch.targets_T)[1].logprobs

    def look(self, trajectories: list[Trajectory]) -> StepFacts:
        """Facts about these trajectories for the method's plan of the whole step."""
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
            step=self._step,
        )

    def look_at_nothing(self) -> None:
        """Take part in the collectives of `look` on a rank without trajectories."""
        if self._method.plan_reads_student:
            self._own(MicroBatch.nothing(self._device))

    def add(self, trajectories: list[Trajectory], plan: StepPlan | None = None, show_below: int = 0) -> None:
        """Forward and backward; trajectories with a ticket index below `show_below` are kept for the report."""
        self._count(trajectories)
        batch, objective = self._pack(trajectories), self._objective
        tokens = TokenBatch(
            self._own(batch) if objective.selects_by_gap else torch.empty(0),
            batch.teacher_T,
            batch.probes_CT,
            self._reference(batch) if self._reference is not None else None,
            self._planned(batch, trajectories, plan),
            self._step,
        )
        seeds = [f"select/{self._step.seed}/{t.ticket.id}" for t in trajectories]
        # What the plan drops is computed too, without a gradient: the metrics are of all tokens, and methods compare.
        mask = objective.mask(tokens, batch.lengths_B, seeds) & self._kept_by(plan, batch, trajectories)
        weights = objective.weights(batch.lengths_B, mask)
        stale = self._ages(batch, trajectories) > 0

        def coefficients(part: slice, logprobs: Tensor) -> Tensor:
            own = batch.rollout_T[part] if self._section.student_logprobs == "rollout" else logprobs
            ratio = objective.ratio(logprobs, batch.rollout_T[part], stale[part])
            return objective.coefficients(tokens.part(part, own), weights[part], ratio)

        extra = None
        if self._method.forward_kl is not None:
            extra = forward_kl(batch, trajectories, weights, self._method.forward_kl(objective.settings))
        overlap = self._section.overlap_top_k if any(_measured(t) for t in trajectories) else 0
        loss, student = self._student(
            batch.packed, batch.rows_T, batch.targets_T, HeadObjective(coefficients, extra, overlap)
        )
        # FSDP averages over the ranks; the step's loss is a sum.
        (loss * self._world_size).backward()
        if extra is not None and student.forward_kl is not None:
            opened = extra.weights_T > 0
            self.result.sums.add(forward_kl=student.forward_kl * opened, gate_open=opened)
        own = batch.rollout_T if self._section.student_logprobs == "rollout" else student.logprobs
        tokens = replace(tokens, student_logprobs=own)
        used = objective.advantage(tokens).where(mask, 0.0)
        self._measure(batch, trajectories, loss, student, tokens, used, mask)
        self._measure_staleness(batch, trajectories, student.logprobs)
        for part, trajectory in zip(batch.parts(), trajectories, strict=True):
            if trajectory.ticket.index < show_below:
                self.result.shown.append(_show(batch, part, trajectory, student, used, (self._base, *self._probes)))

    def add_nothing(self) -> None:
        """Take part in the collectives of `add` on a rank without trajectories."""
        nothing = MicroBatch.nothing(self._device)
        if self._reference is not None:
            self._reference(nothing)
        if self._objective.selects_by_gap:
            self._own(nothing)
        objective = HeadObjective(lambda part, logprobs: torch.zeros_like(logprobs))
        loss, _ = self._student(nothing.packed, nothing.rows_T, nothing.targets_T, objective)
        loss.backward()

    def _planned(self, batch: MicroBatch, trajectories: list[Trajectory], plan: StepPlan | None) -> dict[str, Tensor]:
        """The plan's values of these trajectories; a scalar is expanded over the tokens."""
        if plan is None:
            return {}
        values = [plan[t.ticket.index] or {} for t in trajectories]
        names = next((planned for planned in plan.values() if planned is not None), {})
        nothing = torch.zeros(())
        return {
            name: torch.cat(
                [v.get(name, nothing).expand(n) for v, n in zip(values, batch.lengths_B.tolist(), strict=True)]
            ).to(self._device)
            for name in names
        }

    def _kept_by(self, plan: StepPlan | None, batch: MicroBatch, trajectories: list[Trajectory]) -> Tensor:
        """[T] of bool: the tokens of the trajectories that the plan does not drop."""
        kept = torch.tensor([plan is None or plan[t.ticket.index] is not None for t in trajectories])
        return kept.repeat_interleave(batch.lengths_B).to(self._device)

    def _count(self, trajectories: list[Trajectory]) -> None:
        """Count the rollouts, whether the method keeps them or not."""
        self.result.used += [t.ticket.index for t in trajectories]
        self.result.lengths += [len(t.sample.response_ids) for t in trajectories]
        self.result.sampler = trajectories[0].sampler
        add_readings(self.result.activities, "rollout", (t.activity for t in trajectories))
        add_readings(self.result.activities, "teacher", (t.scores.activity for t in trajectories if t.scores))
        for sample in (t.sample for t in trajectories if t.sample.first_token_time):
            self.result.add_first_token(sample.policy_version, sample.first_token_time)
        self.result.sums.add(
            trajectories=float(len(trajectories)),
            correct=float(sum(t.correct for t in trajectories)),
            after_think=float(sum(t.answered_after_think for t in trajectories)),
            truncated=float(sum(t.sample.truncated for t in trajectories)),
            seconds_rollout=sum(t.sample.seconds for t in trajectories),
            seconds_teacher=sum(t.scores.seconds for t in trajectories if t.scores),
        )

    def _measure(
        self,
        batch: MicroBatch,
        trajectories: list[Trajectory],
        loss: Tensor,
        student: HeadScores,
        tokens: TokenBatch,
        used: Tensor,
        mask: Tensor,
    ) -> None:
        """Add what the metrics of the step are computed from: all tokens; one that the method drops has A = 0."""
        assert student.entropy is not None
        self.result.sums.add_tokens(used, self._objective.clamped(used), opd_advantage(tokens), student.entropy)
        settings = self._objective.settings
        if isinstance(settings, ProbeSettings):
            region = tsd_region(batch.teacher_T, batch.probes_CT, settings.relaxation)
            deviations = batch.probes_CT - batch.teacher_T
            self.result.sums.add_region(region, dict(zip(self._probes, deviations, strict=True)))
        kept = torch.stack([mask[part].any() for part in batch.parts()])
        self.result.sums.add(
            loss=loss.detach(),
            kept_trajectories=kept,
            kept_tokens=mask,
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
            common, mass = top_k_overlap(ids, logprobs, of_part)
            self.result.sums.add_overlap(common.mean(), mass.mean())

    def _measure_staleness(self, batch: MicroBatch, trajectories: list[Trajectory], logprobs: Tensor) -> None:
        """Add the ages of the tokens, the mismatch of the fresh ones and the importance ratios of the stale ones."""
        ages, sums = self._ages(batch, trajectories), self.result.sums
        fresh, stale = ages == 0, ages > 0
        sums.add(
            staleness=ages,
            fresh_tokens=fresh,
            mismatch=(batch.rollout_T - logprobs)[fresh].abs(),
            stale_tokens=stale,
        )
        limit = self._objective.importance_limit
        if limit is not None:
            ratio = self._objective.ratio(logprobs, batch.rollout_T, stale)[stale]
            sums.add(importance_ratio=ratio, importance_truncated=ratio == limit)


def _measured(trajectory: Trajectory) -> bool:
    """Whether the teacher's top-k is there for all tokens, to be compared with the student's."""
    ticket, scores = trajectory.ticket, trajectory.scores
    options = ticket.score_options
    return options.top_k > 0 and options.top_k_min_entropy is None and scores is not None and scores.top_k is not None


def _show(
    batch: MicroBatch,
    part: slice,
    trajectory: Trajectory,
    student: HeadScores,
    advantage: Tensor,
    contexts: tuple[str, ...],
) -> dict[str, Any]:
    """A line of trajectories.jsonl, which the report colours; its first context is the one that was learnt from."""
    rows = {name: row[part].tolist() for name, row in zip(contexts, (batch.teacher_T, *batch.probes_CT), strict=True)}
    return {
        "index": trajectory.ticket.index,
        "problem_id": trajectory.ticket.problem_id,
        "correct": trajectory.correct,
        "response_ids": trajectory.sample.response_ids.tolist(),
        "student_logprobs": student.logprobs[part].tolist(),
        "teacher_logprobs": rows,
        "advantage": advantage[part].tolist(),
    }
