"""The clamp, the importance ratio, the weights of tokens, and the denominators of the three aggregations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from torch import Tensor

LossAggMode = Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum"]
LOSS_AGG_MODES: tuple[str, ...] = get_args(LossAggMode)


def clamp_advantage(advantage: Tensor, clamp: float | None) -> Tensor:
    """Bound the advantage on both sides, after calibration; None = no clamp."""
    return advantage if clamp is None else advantage.clamp(-clamp, clamp)


def importance_ratio(student_logprobs: Tensor, rollout_logprobs: Tensor, stale: Tensor, limit: float | None) -> Tensor:
    """min(pi_S / pi_rollout, limit) where a token is stale, 1 elsewhere; all [T]. Without a limit, 1 everywhere.

    pi_S is the student that learns, pi_rollout the older one that sampled the token.
    """
    import torch

    ratio = torch.ones_like(student_logprobs)
    if limit is None:
        return ratio
    return torch.where(stale, (student_logprobs - rollout_logprobs).exp().clamp(max=limit), ratio)


def token_weights(lengths: Tensor, mode: LossAggMode, mask: Tensor | None = None) -> Tensor:
    """[T] weights of the tokens of concatenated trajectories of `lengths` [B], before the denominator.

    Tokens outside `mask` [T] have weight 0 and do not count in the mean of their trajectory.
    """
    import torch

    kept = torch.ones(int(lengths.sum()), dtype=torch.bool) if mask is None else mask.cpu()
    trajectory = torch.arange(len(lengths)).repeat_interleave(lengths)
    counts = torch.zeros(len(lengths), dtype=torch.float64).index_add_(0, trajectory, kept.double())
    weights = 1 / counts[trajectory].clamp(min=1) if mode == "seq-mean-token-mean" else torch.ones(len(kept))
    return (weights * kept).float()


def denominator(trajectories: int, tokens: int, mode: LossAggMode) -> int:
    """The divisor of the summed loss of a step: its trajectories, or its tokens for token-mean."""
    return tokens if mode == "token-mean" else trajectories
