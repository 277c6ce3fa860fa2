"""The objective: L = agg(-sg(A_t) * log pi_S(y_t)), clamped advantages, denominators of the whole step.

A step is cut into micro-batches and ranks in whatever way; each adds `token_weights * -A * log pi`, and the summed
gradient is divided once by `denominator`. That is why the cut cannot change it.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

LossAggMode = Literal["seq-mean-token-mean", "token-mean", "seq-mean-token-sum"]
LOSS_AGG_MODES: tuple[str, ...] = get_args(LossAggMode)


def clamp_advantage(advantage: Tensor, clamp: float | None) -> Tensor:
    """The clamp acts on the advantage, both sides, after calibration; None = no clamp."""
    return advantage if clamp is None else advantage.clamp(-clamp, clamp)


def token_weights(lengths: Tensor, mode: LossAggMode, mask: Tensor | None = None) -> Tensor:
    """[T] weight of each token of the concatenated trajectories of `lengths` [B], before the denominator.

    Tokens outside of `mask` [T] weigh nothing and do not count in their trajectory's mean.
    """
    kept = torch.ones(int(lengths.sum()), dtype=torch.bool) if mask is None else mask.cpu()
    trajectory = torch.arange(len(lengths)).repeat_interleave(lengths)
    counts = torch.zeros(len(lengths), dtype=torch.float64).index_add_(0, trajectory, kept.double())
    weights = 1 / counts[trajectory].clamp(min=1) if mode == "seq-mean-token-mean" else torch.ones(len(kept))
    return (weights * kept).float()


def denominator(trajectories: int, tokens: int, mode: LossAggMode) -> int:
    """What the summed loss of the step is divided by: B, or the step's tokens for token-mean."""
    return tokens if mode == "token-mean" else trajectories


def step_loss(advantages: Tensor, logprobs: Tensor, lengths: Tensor, mode: LossAggMode) -> Tensor:
    """The loss of a whole step in one piece: the definition that any cut into micro-batches must reproduce."""
    weighted = token_weights(lengths, mode).to(logprobs) * -advantages.detach() * logprobs
    return weighted.sum() / denominator(len(lengths), int(lengths.sum()), mode)
