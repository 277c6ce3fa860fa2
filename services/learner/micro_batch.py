"""Trajectories as tensors: the input of one forward and backward pass of the student."""

from dataclasses import dataclass

import numpy as np
import torch

from calopd.core.lm_head import ForwardKL
from calopd.core.methods.base import ForwardKLOptions
from calopd.core.methods.eopd import forward_kl_targets
from calopd.core.types import Trajectory
from calopd.models.packing import Packed, pack


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of some trajectories; their response tokens are concatenated along _T."""

    packed: Packed
    """The inputs of the student, without padding."""
    rows_T: torch.Tensor
    """The row that predicts each response token."""
    targets_T: torch.Tensor
    lengths_B: torch.Tensor
    teacher_T: torch.Tensor
    probes_CT: torch.Tensor
    rollout_T: torch.Tensor

    @classmethod
    def pack(
        cls, trajectories: list[Trajectory], base: str, probes: tuple[str, ...], device: torch.device
    ) -> "MicroBatch":
        """`base` names the context that the student learns from, `probes` those that measure it."""
        packed = pack([np.concatenate((t.prompt_ids, t.sample.response_ids[:-1])) for t in trajectories], share=False)
        # The log-probability of response token j is read at the row before it.
        rows = [own[len(t.prompt_ids) - 1 :] for own, t in zip(packed.rows, trajectories, strict=True)]
        responses = [trajectory.sample.response_ids for trajectory in trajectories]
        scores = np.concatenate([_scores_under(t, (base, *probes)) for t in trajectories], axis=1)
        return cls(
            packed=packed.to(device),
            rows_T=torch.from_numpy(np.concatenate(rows)).to(device),
            targets_T=torch.from_numpy(np.concatenate(responses).astype(np.int64)).to(device),
            lengths_B=torch.tensor([len(response) for response in responses]),
            teacher_T=torch.from_numpy(scores[0]).to(device),
            probes_CT=torch.from_numpy(scores[1:]).to(device),
            rollout_T=torch.from_numpy(np.concatenate([t.sample.logprobs for t in trajectories])).to(device),
        )

    @classmethod
    def nothing(cls, device: torch.device) -> "MicroBatch":
        """One dummy token, for a rank that only takes part in the collectives."""
        one, zero = torch.zeros(1, dtype=torch.long, device=device), torch.zeros(1, device=device)
        packed = pack([np.zeros(1, np.int64)], share=False).to(device)
        return cls(packed, one, one, torch.ones(1, dtype=torch.long), zero, zero[None], zero)

    def parts(self) -> list[slice]:
        """The tokens of each trajectory."""
        ends = self.lengths_B.cumsum(0).tolist()
        return [slice(end - length, end) for end, length in zip(ends, self.lengths_B.tolist(), strict=True)]


def _scores_under(trajectory: Trajectory, names: tuple[str, ...]) -> np.ndarray:
    """[C, T] of the named contexts, in this order."""
    assert trajectory.scores is not None, "a training trajectory without scores"
    by_name = dict(zip(trajectory.scores.names, trajectory.scores.logprobs, strict=True))
    return np.stack([by_name[name] for name in names])


def forward_kl(
    batch: MicroBatch, trajectories: list[Trajectory], weights_T: torch.Tensor, options: ForwardKLOptions
) -> ForwardKL:
    """The forward KL to the teacher's top-k for tokens of high teacher entropy, weighted like the tokens."""
    device, top_k = weights_T.device, options.top_k
    ids = torch.zeros(len(weights_T), top_k, dtype=torch.long)
    q = torch.full((len(weights_T), top_k), 1.0 / top_k)
    gates = torch.zeros(len(weights_T))
    for part, trajectory in zip(batch.parts(), trajectories, strict=True):
        scores = trajectory.scores
        assert scores is not None
        assert scores.entropy is not None
        assert scores.top_k is not None
        top = scores.top_k
        positions = (
            torch.arange(len(scores.entropy)) if top.positions is None else torch.from_numpy(top.positions).long()
        )
        opened = torch.from_numpy(scores.entropy > options.min_entropy)[positions]
        rows = positions[opened] + part.start
        ids[rows] = torch.from_numpy(top.ids[:, :top_k].astype(np.int64))[opened]
        q[rows] = forward_kl_targets(torch.from_numpy(top.logprobs[:, :top_k].copy()))[opened]
        gates[rows] = 1
    return ForwardKL(ids.to(device), q.to(device), gates.to(device) * weights_T * options.weight)
