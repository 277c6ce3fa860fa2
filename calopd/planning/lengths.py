"""Lengths of responses: the distribution that plans and emulations draw from."""

import random
import statistics
from dataclasses import dataclass
from itertools import pairwise

from calopd.core.errors import ConfigError
from calopd.core.options import is_emulated
from calopd.rundir.files import read_lines
from calopd.rundir.layout import RunDir
from calopd.rundir.saved_config import read_config

PAPER_QUANTILES = ((0.0, 1_500), (0.5, 7_758), (0.787, 16_384), (1.0, 16_384))
"""(share of the responses, length in tokens up to which they reach), linear in between: median 7,758, mean 9,270, a
fifth cut at 16,384."""

Quantiles = tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths, in words too."""

    quantiles: Quantiles
    shown: str
    source: str


PAPER_LENGTHS = Lengths(
    PAPER_QUANTILES,
    "median 7,758 tokens, mean 9,270, a fifth cut at 16,384",
    "the paper's, for Qwen3-1.7B; other students may differ",
)


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


def lengths_of_run(run: RunDir) -> Lengths:
    """The distribution that a run recorded: median, 95th percentile and mean of its steps, up to its limit."""
    rows = read_lines(run.metrics)
    if not rows or not run.config.is_file():
        raise ConfigError(f"--lengths {run}: no steps are recorded there, expected the directory of a run")
    config = read_config(run)
    if is_emulated(config):
        raise ConfigError(f"--lengths {run} is an emulated run: its lengths are drawn, not sampled")
    limit = int(config["rollout"]["max_tokens"])
    names = ("response_length_p50", "response_length_p95", "response_length_mean", "truncated_share")
    median, high, mean, cut = (statistics.mean(row[name] for row in rows) for name in names)
    # If more than 5 % are cut, the 95th percentile is the limit, which they reach earlier.
    upper = [(0.5, median), (0.95, high) if cut <= 0.05 else (max(0.51, 1 - cut), limit), (1.0, limit)]
    # The shortest response is not recorded: the one with which the distribution has the recorded mean.
    above = sum((b - a) * (shorter + longer) / 2 for (a, shorter), (b, longer) in pairwise(upper))
    shortest = min(max(1.0, 4 * (mean - above) - upper[0][1]), upper[0][1])
    quantiles = tuple((share, round(length)) for share, length in ((0.0, shortest), *upper))
    shown = f"median {median:,.0f} tokens, mean {mean:,.0f}, {cut:.0%} cut at {limit:,}"
    return Lengths(quantiles, shown, f"{len(rows)} steps of {run}")
