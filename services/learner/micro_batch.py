"""One micro-batch: from trajectories to gradients that add up, and the sums that the step's metrics are made of."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calopd.calibration import tsd_region
from calopd.config import MethodSection
from calopd.logprobs import HeadScores
from calopd.losses import clamp_advantage, token_weights
from calopd.methods import opd_advantage
from calopd.metrics import StepSums, top_k_overlap
from calopd.types import TokenBatch, Trajectory
from services.learner.student import Student


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of some trajectories; their response tokens are concatenated along _T."""

    ids_BL: torch.Tensor
    rows_T: torch.Tensor
    targets_T: torch.Tensor
    lengths_B: torch.Tensor
    teacher_CT: torch.Tensor
    rollout_T: torch.Tensor

    @classmethod
    def pack(cls, trajectories: list[Trajectory], device: torch.device) -> "MicroBatch":
        inputs = [np.concatenate((t.prompt_ids, t.sample.response_ids[:-1])) for t in trajectories]
        longest = max(map(len, inputs))
        ids = torch.zeros(len(inputs), longest, dtype=torch.long)
        rows = []
        for i, (tokens, trajectory) in enumerate(zip(inputs, trajectories, strict=True)):
            ids[i, : len(tokens)] = torch.from_numpy(tokens)
            # The log-probability of response token j is read at the row before it.
            rows.append(torch.arange(len(trajectory.prompt_ids) - 1, len(tokens)) + i * longest)
        responses = [trajectory.sample.response_ids for trajectory in trajectories]
        teacher = [trajectory.scores.logprobs for trajectory in trajectories if trajectory.scores is not None]
        assert len(teacher) == len(trajectories), "a training trajectory without scores"
        return cls(
            ids_BL=ids.to(device),
            rows_T=torch.cat(rows).to(device),
            targets_T=torch.from_numpy(np.concatenate(responses).astype(np.int64)).to(device),
            lengths_B=torch.tensor([len(response) for response in responses]),
            teacher_CT=torch.from_numpy(np.concatenate(teacher, axis=1)).to(device),
            rollout_T=torch.from_numpy(np.concatenate([t.sample.logprobs for t in trajectories])).to(device),
        )


class Accumulator:
    """Adds micro-batches to the gradients of the student and to the step's sums."""

    def __init__(
        self, student: Student, method: MethodSection, device: torch.device, world_size: int, policy_version: int
    ) -> None:
        self._student, self._method, self._device, self._world_size = student, method, device, world_size
        self._policy_version = policy_version
        self.sums = StepSums()
        self.lengths: list[int] = []
        self.used: list[int] = []
        self.shown: list[dict[str, Any]] = []
        self.sampler = ""

    def add(self, trajectories: list[Trajectory], show_below: int = 0) -> None:
        """Forward and backward; tickets with an index below `show_below` are kept for the report."""
        batch = MicroBatch.pack(trajectories, self._device)
        section = self._method
        weights = token_weights(batch.lengths_B, section.loss_agg_mode).to(self._device)
        advantages, clamped = (torch.empty(len(weights), device=self._device) for _ in range(2))

        def coefficients(part: slice, logprobs: torch.Tensor) -> torch.Tensor:
            student = batch.rollout_T[part] if section.student_logprobs == "rollout" else logprobs
            tokens = TokenBatch(student, batch.teacher_CT[0, part], batch.teacher_CT[1:, part])
            advantages[part] = section.method.advantage(tokens, section.settings)
            clamped[part] = clamp_advantage(advantages[part], section.clamp)
            return -weights[part] * clamped[part]

        top_k = max((t.scores.top_k.ids.shape[1] for t in trajectories if t.scores and t.scores.top_k), default=0)
        loss, student = self._student(batch.ids_BL, batch.rows_T, batch.targets_T, coefficients, top_k)
        # FSDP averages over the ranks; the step's loss is a sum.
        (loss * self._world_size).backward()
        self._measure(batch, trajectories, loss, student, advantages, clamped)
        for number, trajectory in enumerate(trajectories):
            if trajectory.ticket.index < show_below:
                self.shown.append(self._show(batch, number, trajectory, student, advantages))

    def add_nothing(self) -> None:
        """Take part in the collectives of a round in which this rank has no trajectory."""
        one = torch.zeros(1, dtype=torch.long, device=self._device)
        loss, _ = self._student(one[None], one, one, lambda part, logprobs: torch.zeros_like(logprobs), 0)
        loss.backward()

    def _measure(
        self,
        batch: MicroBatch,
        trajectories: list[Trajectory],
        loss: torch.Tensor,
        student: HeadScores,
        advantages: torch.Tensor,
        clamped: torch.Tensor,
    ) -> None:
        teacher = batch.teacher_CT[0]
        own = batch.rollout_T if self._method.student_logprobs == "rollout" else student.logprobs
        raw = opd_advantage(TokenBatch(own, teacher, batch.teacher_CT[1:]))
        self.sums.add_tokens(advantages, clamped, raw, student)
        if len(batch.teacher_CT) > 1:
            region = tsd_region(teacher, batch.teacher_CT[1:], self._method.relaxation)
            names = trajectories[0].scores.names[1:] if trajectories[0].scores else ()
            self.sums.add_region(region, dict(zip(names, batch.teacher_CT[1:] - teacher, strict=True)))
        self.sums.add(
            loss=loss.detach(),
            mismatch=(batch.rollout_T - student.logprobs).abs(),
            trajectories=float(len(trajectories)),
            correct=float(sum(t.correct for t in trajectories)),
            after_think=float(sum(t.answered_after_think for t in trajectories)),
            truncated=float(sum(t.sample.truncated for t in trajectories)),
            staleness=float(sum(self._policy_version - t.sample.policy_version for t in trajectories)),
            seconds_rollout=sum(t.sample.seconds for t in trajectories),
            seconds_teacher=sum(t.scores.seconds for t in trajectories if t.scores),
        )
        self.lengths += batch.lengths_B.tolist()
        self.used += [t.ticket.index for t in trajectories]
        self.sampler = trajectories[0].sampler
        end = 0
        for trajectory in trajectories:
            start, end = end, end + len(trajectory.sample.response_ids)
            if trajectory.scores is None or trajectory.scores.top_k is None:
                continue
            assert student.top_ids is not None
            assert student.top_logprobs is not None
            top = trajectory.scores.top_k
            part = HeadScores(student.logprobs[start:end], student.top_ids[start:end], student.top_logprobs[start:end])
            ids, logprobs = (torch.from_numpy(a.copy()).to(self._device) for a in (top.ids, top.logprobs))
            tokens, mass = top_k_overlap(ids, logprobs, part)
            self.sums.add(token_overlap=tokens.mean(), mass_overlap=mass.mean(), overlap_trajectories=1.0)

    def _show(
        self, batch: MicroBatch, number: int, trajectory: Trajectory, student: HeadScores, advantages: torch.Tensor
    ) -> dict[str, Any]:
        start = int(batch.lengths_B[:number].sum())
        part = slice(start, start + int(batch.lengths_B[number]))
        assert trajectory.scores is not None
        return {
            "index": trajectory.ticket.index,
            "problem_id": trajectory.ticket.problem_id,
            "correct": trajectory.correct,
            "response_ids": trajectory.sample.response_ids.tolist(),
            "student_logprobs": student.logprobs[part].tolist(),
            "teacher_logprobs": dict(zip(trajectory.scores.names, batch.teacher_CT[:, part].tolist(), strict=True)),
            "advantage": advantages[part].tolist(),
        }
