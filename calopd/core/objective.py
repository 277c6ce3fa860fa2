"""The learning rule: L = agg(-sg(rho_t * A_t) * log pi_S(y_t)), clamped advantages, denominators of the whole step.

rho_t is 1 for a token that the student of the step has sampled, and min(pi_S / pi_rollout, limit) for an older one.

A step may be cut into micro-batches and ranks in any way. Each part adds sum_t c_t * log pi_S(y_t) with the
coefficients c_t = -weight_t * rho_t * clamp(A_t), and the summed gradient is divided once by the denominator of the
step. So the cut does not change the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calopd.core.losses import LossAggMode, clamp_advantage, denominator, importance_ratio, token_weights
from calopd.core.method_inputs import TokenBatch
from calopd.core.methods.base import Method, MethodSettings
from calopd.core.token_selection import Selection, select_tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A method with its settings, its clamp and its aggregation. The learner and the tests use the same object."""

    method: Method[Any]
    settings: MethodSettings
    loss_agg_mode: LossAggMode
    clamp: float | None
    selection: Selection = "random"
    selection_ratio: float = 1.0
    """Share of the tokens of each response to learn from."""
    importance_limit: float | None = None
    """Upper bound of the importance ratio of stale tokens; None = no ratio."""

    @property
    def selects_by_gap(self) -> bool:
        """Whether the mask reads the student's log-probabilities."""
        return self.selection_ratio < 1 and self.selection != "random"

    def mask(self, tokens: TokenBatch, lengths_B: Tensor, seeds: Sequence[str]) -> Tensor:
        """[T] of bool: the tokens to learn from. One seed per trajectory draws the random selection."""
        import torch

        mask = torch.ones_like(tokens.teacher_logprobs, dtype=torch.bool)
        if self.method.mask is not None:
            mask &= self.method.mask(tokens, self.settings)
        if self.selection_ratio < 1:
            gaps = tokens.teacher_logprobs
            if self.selects_by_gap:
                gaps = gaps - tokens.student_logprobs
            chosen = [
                select_tokens(part, self.selection_ratio, self.selection, seed)
                for part, seed in zip(gaps.split(lengths_B.tolist()), seeds, strict=True)
            ]
            mask &= torch.cat(chosen)
        return mask

    def weights(self, lengths_B: Tensor, mask_T: Tensor) -> Tensor:
        """[T] weights of the tokens before the denominator; 0 outside the mask."""
        return token_weights(lengths_B, self.loss_agg_mode, mask_T).to(mask_T.device)

    def advantage(self, tokens: TokenBatch) -> Tensor:
        """[T] advantages before the clamp."""
        return self.method.advantage(tokens, self.settings)

    def clamped(self, advantage_T: Tensor) -> Tensor:
        return clamp_advantage(advantage_T, self.clamp)

    def ratio(self, logprobs_T: Tensor, rollout_T: Tensor, stale_T: Tensor) -> Tensor:
        """[T] importance ratios, from the learner's log-probabilities and those of the policy that sampled."""
        return importance_ratio(logprobs_T, rollout_T, stale_T, self.importance_limit)

    def coefficients(self, tokens: TokenBatch, weights_T: Tensor, ratio_T: Tensor | float = 1.0) -> Tensor:
        """[T] c_t: the gradient of the summed loss with respect to log pi_S(y_t)."""
        return -weights_T * ratio_T * self.clamped(self.advantage(tokens))

    def denominator(self, trajectories: int, tokens: int) -> int:
        """The divisor of the summed gradient, from what the masks of the whole step keep."""
        return max(1, denominator(trajectories, tokens, self.loss_agg_mode))

    def loss(
        self,
        tokens: TokenBatch,
        logprobs_T: Tensor,
        lengths_B: Tensor,
        seeds: Sequence[str] = (),
        ratio_T: Tensor | float = 1.0,
    ) -> Tensor:
        """The loss of a whole step in one piece. The learner forms the same sum chunk by chunk."""
        mask = self.mask(tokens, lengths_B, seeds)
        weights = self.weights(lengths_B, mask).to(logprobs_T)
        kept = sum(bool(part.any()) for part in mask.split(lengths_B.tolist()))
        summed = (self.coefficients(tokens, weights, ratio_T).detach() * logprobs_T).sum()
        return summed / self.denominator(kept, int(mask.sum()))
