"""Token selection: learn from a share of each response's tokens (the paper learns from all)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Selection = Literal["random", "top-gap", "bottom-gap"]


def select_tokens(gaps: Tensor, ratio: float, how: Selection, seed: str) -> Tensor:
    """[T] of bool: round(ratio * T) tokens of one response, at least one.

    `random` draws them from the seed; `top-gap` and `bottom-gap` take those with the largest or smallest |lT - lS|.
    """
    import torch

    count = len(gaps)
    wanted = max(1, round(ratio * count))
    if how == "random":
        chosen = torch.tensor(random.Random(seed).sample(range(count), wanted))
    else:
        chosen = gaps.abs().topk(wanted, largest=how == "top-gap").indices.cpu()
    mask = torch.zeros(count, dtype=torch.bool)
    mask[chosen] = True
    return mask.to(gaps.device)
