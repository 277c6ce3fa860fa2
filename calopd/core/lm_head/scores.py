"""From hidden states to log-probabilities without holding [T, V]: the LM head in tiles, float32 log-sum-exp.

Most of the cost of a naive head is page faults on freshly allocated logits, so one buffer is used again and again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from calopd.core.lm_head.products import project
from calopd.core.types import LOGPROBS_ONLY, ScoreOptions

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
    """[T], if it was asked for."""


@torch.no_grad()
def score_targets(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    targets_T: Tensor,
    options: ScoreOptions = LOGPROBS_ONLY,
    *,
    rows: int = 512,
    tile: int = 4_096,
) -> HeadScores:
    """Log-probabilities of `targets_T` under softmax(hidden @ weight^T), in tiles of `rows` x `tile` of the vocabulary.

    With `options.top_k_min_entropy`, the top-k is that of the rows whose entropy exceeds it.
    """
    needs_entropy = options.want_entropy or options.top_k_min_entropy is not None
    count, size = len(hidden_TH), len(weight_VH)
    buffer = torch.empty(min(rows, count) * min(tile, size), device=hidden_TH.device)
    spare = torch.empty_like(buffer) if needs_entropy else None
    parts = []
    for start in range(0, count, rows):
        hidden, targets = hidden_TH[start : start + rows], targets_T[start : start + rows]
        own = torch.einsum("th,th->t", hidden.float(), weight_VH[targets].float())
        if not options.top_k and spare is None:
            parts.append(HeadScores((own - _log_totals(hidden, weight_VH, buffer, tile)).clamp_(max=0)))
            continue
        softmax = RunningSoftmax(len(hidden), options.top_k, hidden.device)
        for first in range(0, size, tile):
            logits = _project(hidden, weight_VH[first : first + tile], buffer)
            softmax.add(logits, first, None if spare is None else spare[: logits.numel()].view_as(logits))
        parts.append(softmax.scores(own, entropy=needs_entropy))
    return _joined(parts, options)


@torch.no_grad()
def score_logits(
    logits: Callable[[slice], Tensor | None],
    targets_T: Tensor,
    options: ScoreOptions = LOGPROBS_ONLY,
    *,
    rows: int = 128,
) -> HeadScores | None:
    """The same scores from `logits(rows)`, [rows, V], for a head whose weight cannot be used directly.

    None if `logits` returns None: with tensor parallelism only the first rank has them.
    """
    needs_entropy = options.want_entropy or options.top_k_min_entropy is not None
    parts = []
    for start in range(0, len(targets_T), rows):
        part = slice(start, start + rows)
        found = logits(part)
        if found is None:
            continue
        found = found.float()
        own = found.gather(1, targets_T[part, None]).squeeze(1)
        softmax = RunningSoftmax(len(found), options.top_k, found.device)
        softmax.add(found, 0, torch.empty_like(found) if needs_entropy else None)
        parts.append(softmax.scores(own, entropy=needs_entropy))
    return _joined(parts, options) if parts else None


def _joined(parts: list[HeadScores], options: ScoreOptions) -> HeadScores:
    """The rows of all parts; with a minimum entropy, the top-k of the rows that exceed it."""
    threshold = options.top_k_min_entropy
    columns = zip(*((p.logprobs, p.top_ids, p.top_logprobs, p.entropy) for p in parts), strict=True)
    logprobs, top_ids, top_logprobs, entropies = (None if c[0] is None else torch.cat(c) for c in columns)
    assert logprobs is not None
    positions = None
    if threshold is not None and entropies is not None and top_ids is not None and top_logprobs is not None:
        positions = torch.nonzero(entropies > threshold).squeeze(1)
        top_ids, top_logprobs = top_ids[positions], top_logprobs[positions]
    return HeadScores(logprobs, top_ids, top_logprobs, entropies if options.want_entropy else None, positions)


def _project(hidden_TH: Tensor, weight_VH: Tensor, buffer: Tensor) -> Tensor:
    """float32 logits, in `buffer` or in memory of their own."""
    return project(hidden_TH, weight_VH, buffer[: len(hidden_TH) * len(weight_VH)].view(len(hidden_TH), -1))


def _log_totals(hidden_TH: Tensor, weight_VH: Tensor, buffer: Tensor, tile: int) -> Tensor:
    """Log-sum-exp of each row's logits, without a shift, which saves two passes; with one for rows that overflow."""
    total = torch.zeros(len(hidden_TH), device=hidden_TH.device)
    for weight in weight_VH.split(tile):
        total += _project(hidden_TH, weight, buffer).exp_().sum(1)
    log_total = total.log()
    # NaN and infinity fail the comparison too.
    unsafe = ~(log_total.abs() < SAFE_LOG)
    if unsafe.any():
        softmax = RunningSoftmax(int(unsafe.sum()), 0, hidden_TH.device)
        for weight in weight_VH.split(tile):
            softmax.add(_project(hidden_TH[unsafe], weight, buffer), 0, None)
        log_total[unsafe] = softmax.log_total
    return log_total


class RunningTopK:
    """The largest logits of rows whose logits are added tile by tile."""

    def __init__(self, rows: int, top_k: int, device: torch.device) -> None:
        self._k = top_k
        self._best = torch.empty(rows, 0, device=device)
        self._ids = torch.empty(rows, 0, dtype=torch.long, device=device)

    def add(self, logits_TV: Tensor, first: int) -> None:
        """Add the logits of the vocabulary from `first` on."""
        if not self._k:
            return
        best, ids = logits_TV.topk(min(self._k, logits_TV.shape[1]))
        best, ids = torch.cat((self._best, best), 1), torch.cat((self._ids, ids + first), 1)
        self._best, chosen = best.topk(min(self._k, best.shape[1]))
        self._ids = ids.gather(1, chosen)

    def scores(self, log_total_T: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Ids and log-probabilities, [T, K]; None if none were asked for."""
        return (self._ids, self._best - log_total_T[:, None]) if self._k else (None, None)


class RunningSoftmax:
    """Log-sum-exp, entropy and top-k of rows whose logits are added tile by tile."""

    def __init__(self, rows: int, top_k: int, device: torch.device) -> None:
        self._max = torch.full((rows, 1), -torch.inf, device=device)
        self._total = torch.zeros(rows, 1, device=device)
        self._weighted = torch.zeros(rows, 1, device=device)
        """sum exp(x - max) (x - max)"""
        self._top = RunningTopK(rows, top_k, device)

    def add(self, logits_TV: Tensor, first: int, exponentials_TV: Tensor | None = None) -> None:
        """Add the logits of the vocabulary from `first` on, overwriting them.

        With `exponentials_TV` entropy is measured too, and the buffer receives exp(logits - `peak`).
        """
        self._top.add(logits_TV, first)
        highest = torch.maximum(self._max, logits_TV.amax(1, keepdim=True))
        shrink = (self._max - highest).exp()
        logits_TV -= highest
        exp = torch.exp(logits_TV, out=logits_TV if exponentials_TV is None else exponentials_TV)
        total = exp.sum(1, keepdim=True)
        if exponentials_TV is not None:
            moved = torch.where(self._total > 0, self._total * (self._max - highest), 0.0)
            self._weighted = shrink * (self._weighted + moved) + logits_TV.mul_(exp).sum(1, keepdim=True)
        self._total = self._total * shrink + total
        self._max = highest

    @property
    def peak(self) -> Tensor:
        """[T, 1]: the maximum of the logits so far."""
        return self._max

    @property
    def log_total(self) -> Tensor:
        return (self._max + self._total.log()).squeeze(1)

    def scores(self, target_logits_T: Tensor, *, entropy: bool) -> HeadScores:
        log_total = self.log_total
        return HeadScores(
            (target_logits_T - log_total).clamp_(max=0),
            *self._top.scores(log_total),
            (self._total.log() - self._weighted / self._total).squeeze(1) if entropy else None,
        )
