"""An LM head whose vocabulary is split over several processes: each scores its part, then the parts are joined.

A few numbers per token travel instead of logits, and they stay float32 whatever the data type of the weights.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from calopd.core.lm_head.scores import HeadScores, score_targets
from calopd.core.types import LOGPROBS_ONLY, ScoreOptions


@torch.no_grad()
def score_sharded(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    targets_T: Tensor,
    options: ScoreOptions = LOGPROBS_ONLY,
    *,
    first: int,
    all_gather: Callable[[Tensor], Tensor],
    rows: int = 512,
    tile: int = 4_096,
) -> HeadScores:
    """The scores of `score_targets`, on every process; `weight_VH` is the part of the vocabulary from `first` on.

    `all_gather` returns the [T, C] tensors of all processes side by side, [T, S * C], in the order of their parts.
    """
    count, size = len(targets_T), len(weight_VH)
    local = (targets_T - first).clamp(0, size - 1)
    needs_entropy = options.want_entropy or options.top_k_min_entropy is not None
    part = score_targets(hidden_TH, weight_VH, local, ScoreOptions(options.top_k, needs_entropy), rows=rows, tile=tile)
    own = torch.einsum("th,th->t", hidden_TH.float(), weight_VH[local].float())
    log_total = own - part.logprobs
    elsewhere = (targets_T < first) | (targets_T >= first + size)
    entropy = part.entropy if part.entropy is not None else torch.zeros_like(own)
    columns = torch.stack((own.masked_fill(elsewhere, -torch.inf), log_total, entropy), 1)
    owns, log_totals, entropies = all_gather(columns).view(count, -1, 3).unbind(2)
    total = log_totals.logsumexp(1, keepdim=True)
    logprobs = (owns.amax(1, keepdim=True) - total).squeeze(1).clamp_(max=0)
    share = (log_totals - total).exp()
    entropy = (share * entropies + torch.special.entr(share)).sum(1)
    top_ids, top_logprobs, positions = None, None, None
    if part.top_ids is not None and part.top_logprobs is not None:
        # Parts of the vocabulary differ in size: a small one has fewer than k tokens to offer.
        missing = options.top_k - part.top_ids.shape[1]
        logits = all_gather(pad(part.top_logprobs + log_total[:, None], (0, missing), value=-torch.inf))
        ids = all_gather(pad(part.top_ids + first, (0, missing)))
        best, chosen = logits.topk(options.top_k)
        top_ids, top_logprobs = ids.gather(1, chosen), best - total
        if options.top_k_min_entropy is not None:
            positions = torch.nonzero(entropy > options.top_k_min_entropy).squeeze(1)
            top_ids, top_logprobs = top_ids[positions], top_logprobs[positions]
    return HeadScores(logprobs, top_ids, top_logprobs, entropy if options.want_entropy else None, positions)
