"""From hidden states to log-probabilities without ever holding [T, V]: the LM head in parts, float32 log-sum-exp.

Most of the cost of a naive head is page faults on freshly allocated logits, so one buffer is used again and again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SAFE_LOG = 40.0
"""A sum of exponentials within exp(+-40) has neither overflowed float32 nor lost terms to underflow."""


@dataclass(frozen=True, slots=True)
class HeadScores:
    logprobs: Tensor
    """[T], of the target tokens."""
    top_ids: Tensor | None = None
    """[T, K]."""
    top_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    """[T], over the whole vocabulary, in nats."""
    top_positions: Tensor | None = None
    """[P]: the rows that `top_ids` and `top_logprobs` are of; None = all."""
    forward_kl: Tensor | None = None
    """[T], where it was asked for."""


@dataclass(frozen=True, slots=True)
class ForwardKL:
    """sum_v q_v (log q_v - log pi(v)) of each row, to be added with a weight; 0 = not there."""

    ids_TK: Tensor
    q_TK: Tensor
    weights_T: Tensor


@torch.no_grad()
def score_targets(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    targets_T: Tensor,
    *,
    top_k: int = 0,
    entropy: bool = False,
    top_k_min_entropy: float | None = None,
    rows: int = 512,
    tile: int = 4_096,
) -> HeadScores:
    """Log-probabilities of `targets_T` under softmax(hidden @ weight^T), in tiles of `rows` x `tile` of the vocabulary.

    With `top_k_min_entropy`, the top-k is that of rows whose entropy exceeds it.
    """
    wants_entropy = entropy or top_k_min_entropy is not None
    count, size = len(hidden_TH), len(weight_VH)
    buffer = torch.empty(min(rows, count) * min(tile, size), device=hidden_TH.device)
    spare = torch.empty_like(buffer) if wants_entropy else None
    parts = []
    for start in range(0, count, rows):
        hidden, targets = hidden_TH[start : start + rows], targets_T[start : start + rows]
        own = torch.einsum("th,th->t", hidden.float(), weight_VH[targets].float())
        if not top_k and spare is None:
            parts.append(HeadScores((own - _log_totals(hidden, weight_VH, buffer, tile)).clamp_(max=0)))
            continue
        softmax = _RunningSoftmax(len(hidden), top_k, hidden.device)
        for first in range(0, size, tile):
            logits = _project(hidden, weight_VH[first : first + tile], buffer)
            softmax.add(logits, first, None if spare is None else spare[: logits.numel()].view_as(logits))
        parts.append(softmax.scores(own, entropy=wants_entropy))
    return _joined(parts, entropy, top_k_min_entropy)


@torch.no_grad()
def score_logits(
    logits: Callable[[slice], Tensor | None],
    targets_T: Tensor,
    *,
    top_k: int = 0,
    entropy: bool = False,
    top_k_min_entropy: float | None = None,
    rows: int = 128,
) -> HeadScores | None:
    """The same from `logits(rows)`, [rows, V], where only the model itself can make them; None where it gives none."""
    wants_entropy = entropy or top_k_min_entropy is not None
    parts = []
    for start in range(0, len(targets_T), rows):
        part = slice(start, start + rows)
        found = logits(part)
        if found is None:
            continue
        found = found.float()
        own = found.gather(1, targets_T[part, None]).squeeze(1)
        softmax = _RunningSoftmax(len(found), top_k, found.device)
        softmax.add(found, 0, torch.empty_like(found) if wants_entropy else None)
        parts.append(softmax.scores(own, entropy=wants_entropy))
    return _joined(parts, entropy, top_k_min_entropy) if parts else None


def _joined(parts: list[HeadScores], entropy: bool, top_k_min_entropy: float | None) -> HeadScores:
    """The rows of all parts; with a gate, the top-k of those that pass it."""
    columns = zip(*((p.logprobs, p.top_ids, p.top_logprobs, p.entropy) for p in parts), strict=True)
    logprobs, top_ids, top_logprobs, entropies = (None if c[0] is None else torch.cat(c) for c in columns)
    assert logprobs is not None
    positions = None
    if top_k_min_entropy is not None and entropies is not None and top_ids is not None and top_logprobs is not None:
        positions = torch.nonzero(entropies > top_k_min_entropy).squeeze(1)
        top_ids, top_logprobs = top_ids[positions], top_logprobs[positions]
    return HeadScores(logprobs, top_ids, top_logprobs, entropies if entropy else None, positions)


def _project(hidden_TH: Tensor, weight_VH: Tensor, buffer: Tensor) -> Tensor:
    """float32 logits in `buffer`; products of bfloat16 are not rounded back to it."""
    if hidden_TH.is_cuda and hidden_TH.dtype != torch.float32:
        return torch.mm(hidden_TH, weight_VH.T, out_dtype=torch.float32)
    out_TV = buffer[: len(hidden_TH) * len(weight_VH)].view(len(hidden_TH), -1)
    return torch.mm(hidden_TH.float(), weight_VH.float().T, out=out_TV)


def _log_totals(hidden_TH: Tensor, weight_VH: Tensor, buffer: Tensor, tile: int) -> Tensor:
    """Log-sum-exp of each row's logits: without a shift, which saves two passes, and again where that is unsafe."""
    total = torch.zeros(len(hidden_TH), device=hidden_TH.device)
    for weight in weight_VH.split(tile):
        total += _project(hidden_TH, weight, buffer).exp_().sum(1)
    log_total = total.log()
    # NaN and infinity fail the comparison too.
    unsafe = ~(log_total.abs() < SAFE_LOG)
    if unsafe.any():
        softmax = _RunningSoftmax(int(unsafe.sum()), 0, hidden_TH.device)
        for weight in weight_VH.split(tile):
            softmax.add(_project(hidden_TH[unsafe], weight, buffer), 0, None)
        log_total[unsafe] = softmax.log_total
    return log_total


class _RunningSoftmax:
    """Log-sum-exp, entropy and top-k of rows whose logits pass by tile by tile."""

    def __init__(self, rows: int, top_k: int, device: torch.device) -> None:
        self._max = torch.full((rows, 1), -torch.inf, device=device)
        self._total = torch.zeros(rows, 1, device=device)
        self._weighted = torch.zeros(rows, 1, device=device)
        """sum exp(x - max) (x - max)"""
        self._k = top_k
        self._best = torch.empty(rows, 0, device=device)
        self._best_ids = torch.empty(rows, 0, dtype=torch.long, device=device)

    def add(self, logits_TV: Tensor, first: int, spare_TV: Tensor | None) -> None:
        """Take in the logits of the vocabulary from `first` on, overwriting them; `spare_TV`: for the entropy."""
        if self._k:
            best, ids = logits_TV.topk(min(self._k, logits_TV.shape[1]))
            best, ids = torch.cat((self._best, best), 1), torch.cat((self._best_ids, ids + first), 1)
            self._best, chosen = best.topk(min(self._k, best.shape[1]))
            self._best_ids = ids.gather(1, chosen)
        highest = torch.maximum(self._max, logits_TV.amax(1, keepdim=True))
        shrink = (self._max - highest).exp()
        logits_TV -= highest
        if spare_TV is None:
            exp = logits_TV.exp_()
        else:
            exp = torch.exp(logits_TV, out=spare_TV)
            moved = torch.where(self._total > 0, self._total * (self._max - highest), 0.0)
            self._weighted = shrink * (self._weighted + moved) + torch.einsum("tv,tv->t", exp, logits_TV)[:, None]
        self._total = self._total * shrink + exp.sum(1, keepdim=True)
        self._max = highest

    @property
    def log_total(self) -> Tensor:
        return (self._max + self._total.log()).squeeze(1)

    def scores(self, target_logits_T: Tensor, *, entropy: bool) -> HeadScores:
        return HeadScores(
            (target_logits_T - self.log_total).clamp_(max=0),
            self._best_ids if self._k else None,
            self._best - self.log_total[:, None] if self._k else None,
            (self._total.log() - self._weighted / self._total).squeeze(1) if entropy else None,
        )


class _Projection:
    """Logits of a chunk, less their maximum, and their exponentials, in two buffers that every chunk uses again."""

    def __init__(self, weight_VH: Tensor, rows: int) -> None:
        self._weight = weight_VH
        shape, device = (rows, len(weight_VH)), weight_VH.device
        self._product = torch.empty(shape, dtype=weight_VH.dtype, device=device)
        self._exp = torch.empty(shape, device=device)
        self._logits = self._product if weight_VH.dtype == torch.float32 else torch.empty(shape, device=device)

    def __call__(self, hidden_TH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shifted logits [T, V], their exponentials [T, V], and the sums of these [T]; float32."""
        count = len(hidden_TH)
        product = torch.mm(hidden_TH, self._weight.T, out=self._product[:count])
        logits = self._logits[:count]
        if logits.dtype != product.dtype:
            logits.copy_(product)
        logits -= logits.amax(1, keepdim=True)
        exp = torch.exp(logits, out=self._exp[:count])
        return logits, exp, exp.sum(1)


def _entropy(logits: Tensor, exp: Tensor, total: Tensor) -> Tensor:
    """-sum p log p from shifted logits, without another [T, V]."""
    return total.log() - torch.einsum("tv,tv->t", exp, logits) / total


class _PolicyGradient(torch.autograd.Function):
    """sum_t c_t * log pi(y_t), with c_t chosen from log pi(y_t) itself and the gradient formed in the forward pass."""

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
            gradient = gradient.to(hidden_TH.dtype)
            torch.mm(gradient, weight_VH, out=grad_hidden[part])
            if not learns_head:
                continue
            if gradient.dtype == grad_weight.dtype:
                grad_weight.addmm_(gradient.T, hidden_TH[part])
            else:
                grad_weight += gradient.T @ hidden_TH[part]
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
    """sum_t c_t * log pi_S(y_t) and what was seen on the way; c = coefficients(rows, log pi of these rows) is constant.

    The loss of OPD (Eq. 3) is this with c_t = -weight_t * sg(A_t): A reads the log-probability of the same pass.
    `forward_kl` adds sum_t w_t * FKL_t, differentiated directly.
    """
    objective, logprobs, entropies, top_ids, top_logprobs, kl = _PolicyGradient.apply(  # type: ignore[no-untyped-call]
        hidden_TH, weight_VH, targets_T, coefficients, forward_kl, top_k, rows
    )
    return objective, HeadScores(
        logprobs, top_ids, top_logprobs, entropies, forward_kl=kl if forward_kl is not None else None
    )
