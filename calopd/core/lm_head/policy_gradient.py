"""The LM head of the learner: the objective and its gradient, formed chunk by chunk in the forward pass."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calopd.core.lm_head.products import add_gradients, project
from calopd.core.lm_head.scores import HeadScores


@dataclass(frozen=True, slots=True)
class ForwardKL:
    """sum_v q_v (log q_v - log pi(v)) of each row, added with a weight; 0 = not added."""

    ids_TK: Tensor
    q_TK: Tensor
    weights_T: Tensor


class _Projection:
    """Logits of a chunk, less their maximum, and their exponentials, in two buffers that all chunks share."""

    def __init__(self, weight_VH: Tensor, rows: int) -> None:
        self._weight = weight_VH
        self._logits, self._exp = torch.empty(2, rows, len(weight_VH), device=weight_VH.device)

    def __call__(self, hidden_TH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shifted logits [T, V], their exponentials [T, V], and the sums of these [T]; float32."""
        count = len(hidden_TH)
        logits = project(hidden_TH, self._weight, self._logits[:count])
        logits -= logits.amax(1, keepdim=True)
        exp = torch.exp(logits, out=self._exp[:count])
        return logits, exp, exp.sum(1)


def _entropy(logits: Tensor, exp: Tensor, total: Tensor) -> Tensor:
    """-sum p log p from shifted logits, without another [T, V]."""
    return total.log() - torch.einsum("tv,tv->t", exp, logits) / total


class _PolicyGradient(torch.autograd.Function):
    """sum_t c_t * log pi(y_t), with c_t a function of log pi(y_t), and the gradient formed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        weight_VH: Tensor,
        targets_T: Tensor,
        coefficients: Callable[[slice, Tensor], Tensor],
        forward_kl: ForwardKL | None,
        top_k: int,
        rows: int,
    ) -> tuple[Tensor, ...]:
        count = len(hidden_TH)
        device = hidden_TH.device
        logprobs = torch.empty(count, device=device)
        entropies = torch.empty(count, device=device)
        top_ids = torch.empty(count, top_k, dtype=torch.long, device=device)
        top_logprobs = torch.empty(count, top_k, device=device)
        grad_hidden = torch.empty_like(hidden_TH)
        learns_head = ctx.needs_input_grad[1]
        grad_weight = torch.zeros(weight_VH.shape if learns_head else (0, weight_VH.shape[1]), device=device)
        objective = torch.zeros((), dtype=torch.float64, device=device)
        kl = torch.zeros(count, device=device)
        project = _Projection(weight_VH, min(rows, count))
        for start in range(0, count, rows):
            part = slice(start, min(start + rows, count))
            targets = targets_T[part, None]
            logits, exp, total = project(hidden_TH[part])
            log_total = total.log()
            logprobs[part] = logits.gather(1, targets).squeeze(1) - log_total
            if top_k:
                best, top_ids[part] = logits.topk(top_k)
                top_logprobs[part] = best - log_total[:, None]
            entropies[part] = _entropy(logits, exp, total)
            coefficient = coefficients(part, logprobs[part])
            objective += (coefficient.double() * logprobs[part].double()).sum()
            # d log pi(y) / d logits = onehot(y) - pi
            pull = coefficient
            if forward_kl is not None:
                # d FKL / d logits = pi - q
                ids, q, weight = (t[part] for t in (forward_kl.ids_TK, forward_kl.q_TK, forward_kl.weights_T))
                divergence = (q * (q.log() - (logits.gather(1, ids) - log_total[:, None]))).nan_to_num(0.0).sum(1)
                kl[part] = divergence
                objective += (weight.double() * divergence.double()).sum()
                pull = coefficient - weight
            gradient = exp.mul_((-pull / total)[:, None])
            gradient.scatter_add_(1, targets, coefficient[:, None])
            if forward_kl is not None:
                gradient.scatter_add_(1, ids, -weight[:, None] * q)
            add_gradients(gradient, hidden_TH[part], weight_VH, grad_hidden[part], grad_weight if learns_head else None)
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight_VH.dtype))
        ctx.mark_non_differentiable(logprobs, entropies, top_ids, top_logprobs, kl)
        return objective.float(), logprobs, entropies, top_ids, top_logprobs, kl

    @staticmethod
    def backward(ctx: Any, grad_objective: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = grad_objective
        head = grad_weight * scale.to(grad_weight) if ctx.needs_input_grad[1] else None
        return grad_hidden * scale.to(grad_hidden), head, None, None, None, None, None


def policy_objective(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    targets_T: Tensor,
    coefficients: Callable[[slice, Tensor], Tensor],
    *,
    forward_kl: ForwardKL | None = None,
    top_k: int = 0,
    rows: int = 1024,
) -> tuple[Tensor, HeadScores]:
    """sum_t c_t * log pi_S(y_t) and the scores; c = coefficients(rows, log pi of these rows) is constant.

    The loss of OPD (Eq. 3) is this with c_t = -weight_t * sg(A_t): A reads the log-probability of the same pass.
    `forward_kl` adds sum_t w_t * FKL_t, differentiated directly.
    """
    objective, logprobs, entropies, top_ids, top_logprobs, kl = _PolicyGradient.apply(  # type: ignore[no-untyped-call]
        hidden_TH, weight_VH, targets_T, coefficients, forward_kl, top_k, rows
    )
    return objective, HeadScores(
        logprobs, top_ids, top_logprobs, entropies, forward_kl=kl if forward_kl is not None else None
    )
