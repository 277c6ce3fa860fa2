"""Lengths of responses: the distribution that plans and emulations draw from."""

import random
from itertools import pairwise

PAPER_QUANTILES = ((0.0, 1_500), (0.5, 7_758), (0.787, 16_384), (1.0, 16_384))
"""(share of the responses, length in tokens up to which they reach), linear in between: median 7,758, mean 9,270, a
fifth cut at 16,384."""

Quantiles = tuple[tuple[float, int], ...]


def draw_lengths(count: int, seed: int, *, limit: int = 16_384, quantiles: Quantiles = PAPER_QUANTILES) -> list[int]:
    """`count` lengths, one from each of `count` equal parts of the distribution, in random order; cut at `limit`.

    Stratified, so that a small step has the mean of the distribution.
    """
    chance = random.Random(f"lengths/{seed}")
    shares = [(number + chance.random()) / count for number in range(count)]
    chance.shuffle(shares)
    return [min(limit, length_at(share, quantiles)) for share in shares]


def length_of_seed(seed: int, *, limit: int) -> int:
    """The length of the response with this seed: the same draw whichever process makes it."""
    return min(limit, length_at(random.Random(f"length/{seed}").random()))


def length_at(share: float, quantiles: Quantiles = PAPER_QUANTILES) -> int:
    """The length that this share of the responses stays below."""
    for (low, shorter), (high, longer) in pairwise(quantiles):
        if share <= high:
            return max(1, round(shorter + (longer - shorter) * (share - low) / (high - low)))
    return quantiles[-1][1]
