"""The LM head of the learner: the objective and its gradient, formed chunk by chunk in the forward pass.

One buffer of [rows, V] serves all chunks. It receives the exponentials of the logits, block by block of the vocabulary.
Each block is small enough for a CPU's caches. Most of the cost of a naive head is page faults on freshly allocated
logits.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calopd.core.cpu_products import add_outer_product, product
from calopd.core.head_tiles import objective_shape
from calopd.core.lm_head.products import add_gradients, project
from calopd.core.lm_head.scores import SAFE_LOG, HeadScores, RunningSoftmax, RunningTopK


@dataclass(frozen=True, slots=True)
class ForwardKL:
    """sum_v q_v (log q_v - log pi(v)) of each row, added with a weight; 0 = not added."""

    ids_TK: Tensor
    q_TK: Tensor
    weights_T: Tensor

    def part(self, rows: slice) -> "ForwardKL":
        return ForwardKL(self.ids_TK[rows], self.q_TK[rows], self.weights_T[rows])


class _Places:
    """Entries of the vocabulary of each row, [T, K], to be read from or added to in one block after the other."""

    def __init__(self, ids_TK: Tensor) -> None:
        self.ids_TK = ids_TK
        self.logits = torch.zeros(ids_TK.shape, device=ids_TK.device)

    def _inside(self, block_TV: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Columns of the block, and whether the entry is in it."""
        columns = self.ids_TK - first
        return columns.clamp(0, block_TV.shape[1] - 1), (columns >= 0) & (columns < block_TV.shape[1])

    def read(self, block_TV: Tensor, first: int) -> None:
        columns, inside = self._inside(block_TV, first)
        self.logits += block_TV.gather(1, columns).where(inside, 0.0)

    def add_to(self, block_TV: Tensor, first: int, values_TK: Tensor) -> None:
        columns, inside = self._inside(block_TV, first)
        block_TV.scatter_add_(1, columns, values_TK.where(inside, 0.0))


_kept = threading.local()


def _workspace(weight_VH: Tensor, *sizes: int) -> Sequence[Tensor]:
    """Buffers of these sizes; a CPU keeps them for the next pass, a GPU's allocator does the same by itself."""
    if weight_VH.is_cuda:
        return [torch.empty(size, device=weight_VH.device) for size in sizes]
    if getattr(_kept, "buffer", None) is None or _kept.buffer.numel() < sum(sizes):
        with torch.inference_mode(mode=False):
            _kept.buffer = torch.empty(sum(sizes))
    buffer: Tensor = _kept.buffer
    return buffer[: sum(sizes)].split(sizes)


class _Head(ABC):
    """The exponentials of the logits of a chunk, block by block of the vocabulary, in a buffer shared by all chunks."""

    log_total_T1: Tensor

    def __init__(self, weight_VH: Tensor, rows: int, tile: int) -> None:
        size = len(weight_VH)
        self._weight = weight_VH
        self._tiles = [(first, min(tile, size - first)) for first in range(0, size, tile)]
        self._buffer, self._logits = _workspace(weight_VH, rows * size, rows * min(tile, size))

    def _blocks(self, rows: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The first entry of each block, its part of the buffer, and its part of the weight."""
        for first, width in self._tiles:
            block = self._buffer[rows * first : rows * (first + width)].view(rows, width)
            yield first, block, self._weight[first : first + width]

    @abstractmethod
    def softmax(self, hidden_TH: Tensor, top_k: int, targets: _Places, *others: _Places) -> HeadScores:
        """Fill the buffer and `log_total_T1`, read the logits of the places, and score the targets."""

    @abstractmethod
    def add_gradients(
        self,
        hidden_TH: Tensor,
        pull_T: Tensor,
        extra: list[tuple[_Places, Tensor]],
        grad_hidden_TH: Tensor,
        grad_weight_VH: Tensor | None,
    ) -> None:
        """The gradients of hidden states and head, from those of the logits: -pull * softmax, and the extra values."""


class _BlockMaxima(_Head):
    """Each block relative to a maximum of its own, for products that round: they see the whole gradient of a logit."""

    def softmax(self, hidden_TH: Tensor, top_k: int, targets: _Places, *others: _Places) -> HeadScores:
        softmax = RunningSoftmax(len(hidden_TH), top_k, hidden_TH.device)
        self._peaks = []
        for first, block, weight in self._blocks(len(hidden_TH)):
            logits = project(hidden_TH, weight, self._logits[: block.numel()].view_as(block))
            for places in (targets, *others):
                places.read(logits, first)
            softmax.add(logits, first, block)
            self._peaks.append(softmax.peak)
        self.log_total_T1 = softmax.log_total[:, None]
        return softmax.scores(targets.logits.squeeze(1), entropy=True)

    def add_gradients(
        self,
        hidden_TH: Tensor,
        pull_T: Tensor,
        extra: list[tuple[_Places, Tensor]],
        grad_hidden_TH: Tensor,
        grad_weight_VH: Tensor | None,
    ) -> None:
        total_TH = torch.zeros(hidden_TH.shape, device=hidden_TH.device)
        for (first, block, weight), peak in zip(self._blocks(len(hidden_TH)), self._peaks, strict=True):
            block *= -pull_T[:, None] * (peak - self.log_total_T1).exp()
            for places, values in extra:
                places.add_to(block, first, values)
            own = None if grad_weight_VH is None else grad_weight_VH[first : first + len(weight)]
            add_gradients(block, hidden_TH, weight, total_TH, own)
        grad_hidden_TH.copy_(total_TH)


class _OneShift(_Head):
    """All blocks relative to one number, for float32: then a block is written once and read by the products as it is.

    exp(logits) @ weight is at once the gradient of the hidden states and the source of the mean logit, thus of entropy.
    """

    _guess = 0.0
    """Subtracted from the logits of the next chunk."""

    def softmax(self, hidden_TH: Tensor, top_k: int, targets: _Places, *others: _Places) -> HeadScores:
        self._shift = torch.full((len(hidden_TH), 1), self._guess)
        top = RunningTopK(len(hidden_TH), top_k, hidden_TH.device)

        def read(logits_TV: Tensor, first: int) -> None:
            top.add(logits_TV, first)
            for places in (targets, *others):
                places.read(logits_TV, first)

        total = self._fill(hidden_TH, read)
        if not (total.log().abs() < SAFE_LOG).all():  # NaN and infinity fail the comparison too
            self._shift = self._maxima(hidden_TH)
            self._guess = float(self._shift.nan_to_num().median())
            total = self._fill(hidden_TH, lambda logits_TV, first: None)
        self.log_total_T1 = self._shift + total.log()
        log_total = self.log_total_T1.squeeze(1)
        mean_logit = (self._pulled * hidden_TH).sum(1) / total.squeeze(1)
        return HeadScores(
            (targets.logits.squeeze(1) - log_total).clamp_(max=0),
            *top.scores(log_total),
            (log_total - mean_logit).clamp_(min=0),
        )

    def _fill(self, hidden_TH: Tensor, read: Callable[[Tensor, int], None]) -> Tensor:
        """exp(logits - shift), their sum of each row, [T, 1], and their product with the weight."""
        total = torch.zeros(len(hidden_TH), 1)
        self._pulled = torch.zeros(hidden_TH.shape)
        shifted = bool(self._shift.any())
        for first, block, weight in self._blocks(len(hidden_TH)):
            logits = project(hidden_TH, weight, block)
            read(logits, first)
            if shifted:
                logits -= self._shift
            total += torch.exp(logits, out=block).sum(1, keepdim=True)
            self._pulled += product(block, weight)
        return total

    def _maxima(self, hidden_TH: Tensor) -> Tensor:
        blocks = self._blocks(len(hidden_TH))
        return torch.stack([project(hidden_TH, weight, block).amax(1) for _, block, weight in blocks], 1).amax(
            1, keepdim=True
        )

    def add_gradients(
        self,
        hidden_TH: Tensor,
        pull_T: Tensor,
        extra: list[tuple[_Places, Tensor]],
        grad_hidden_TH: Tensor,
        grad_weight_VH: Tensor | None,
    ) -> None:
        scale = -pull_T[:, None] * (self._shift - self.log_total_T1).exp()
        torch.mul(self._pulled, scale, out=grad_hidden_TH)
        scaled = hidden_TH * scale
        if grad_weight_VH is not None:
            for first, block, weight in self._blocks(len(hidden_TH)):
                add_outer_product(grad_weight_VH[first : first + len(weight)], block, scaled)
        for places, values in extra:
            for ids_T, value_T in zip(places.ids_TK.T, values.T, strict=True):
                grad_hidden_TH.addcmul_(value_T[:, None], self._weight[ids_T])
                if grad_weight_VH is not None:
                    grad_weight_VH.index_add_(0, ids_T, value_T[:, None] * hidden_TH)


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
        count, device = len(hidden_TH), hidden_TH.device
        on_cuda = weight_VH.is_cuda
        rows, tile = objective_shape(len(weight_VH), min(rows, count), on_cuda=on_cuda)
        logprobs = torch.empty(count, device=device)
        entropies = torch.empty(count, device=device)
        top_ids = torch.empty(count, top_k, dtype=torch.long, device=device)
        top_logprobs = torch.empty(count, top_k, device=device)
        grad_hidden = torch.empty_like(hidden_TH)
        learns_head = ctx.needs_input_grad[1]
        grad_weight = torch.zeros(weight_VH.shape, device=device) if learns_head else None
        objective = torch.zeros((), dtype=torch.float64, device=device)
        kl = torch.zeros(count, device=device)
        head = (_OneShift if hidden_TH.dtype == torch.float32 and not on_cuda else _BlockMaxima)(weight_VH, rows, tile)
        for start in range(0, count, rows):
            part = slice(start, min(start + rows, count))
            hidden = hidden_TH[part]
            targets = _Places(targets_T[part, None])
            extra = None if forward_kl is None else forward_kl.part(part)
            likely = None if extra is None else _Places(extra.ids_TK)
            scores = head.softmax(hidden, top_k, targets, *(() if likely is None else (likely,)))
            assert scores.entropy is not None
            logprobs[part], entropies[part] = scores.logprobs, scores.entropy
            if scores.top_ids is not None and scores.top_logprobs is not None:
                top_ids[part], top_logprobs[part] = scores.top_ids, scores.top_logprobs
            coefficient = coefficients(part, scores.logprobs)
            objective += (coefficient.double() * scores.logprobs.double()).sum()
            # d log pi(y) / d logits = onehot(y) - pi
            pull, added = coefficient, [(targets, coefficient[:, None])]
            if extra is not None and likely is not None:
                # d FKL / d logits = pi - q
                q, weight = extra.q_TK, extra.weights_T
                divergence = (q * (q.log() - (likely.logits - head.log_total_T1))).nan_to_num(0.0).sum(1)
                kl[part] = divergence
                objective += (weight.double() * divergence.double()).sum()
                pull = coefficient - weight
                added.append((likely, -weight[:, None] * q))
            head.add_gradients(hidden, pull, added, grad_hidden[part], grad_weight)
        ctx.gradients = grad_hidden, None if grad_weight is None else grad_weight.to(weight_VH.dtype)
        ctx.mark_non_differentiable(logprobs, entropies, top_ids, top_logprobs, kl)
        return objective.float(), logprobs, entropies, top_ids, top_logprobs, kl

    @staticmethod
    def backward(ctx: Any, grad_objective: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        assert ctx.gradients is not None, "the gradient was formed once, and scaled in place: one backward pass only"
        hidden, weight = ctx.gradients
        ctx.gradients = None
        for gradient in (hidden, weight):
            if gradient is not None:
                gradient *= grad_objective.to(gradient)
        return hidden, weight, None, None, None, None, None


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
    `forward_kl` adds sum_t w_t * FKL_t, differentiated directly. At most `rows` are projected at once.
    """
    objective, logprobs, entropies, top_ids, top_logprobs, kl = _PolicyGradient.apply(  # type: ignore[no-untyped-call]
        hidden_TH, weight_VH, targets_T, coefficients, forward_kl, top_k, rows
    )
    return objective, HeadScores(
        logprobs, top_ids, top_logprobs, entropies, forward_kl=kl if forward_kl is not None else None
    )
