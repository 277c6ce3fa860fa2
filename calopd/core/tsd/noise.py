"""Numerical noise of a study: c0 scored twice, in different batches. A deviation of that size is rounding."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

EDGES = np.concatenate([[0.0], np.logspace(-7, 1, 161)])
"""Bounds of the bins of |D|: 20 per power of ten, from 1e-7 to 10 nats."""
FLOOR_SHARE = 0.001
"""A threshold is above the noise if at most this share of the tokens exceeds it by noise alone."""


def noise_counts(first: np.ndarray, second: np.ndarray) -> dict[str, Any]:
    """Counts of |lT - lT'| by bin for the tokens of one response, and the largest."""
    apart = np.abs(first.astype(np.float64) - second.astype(np.float64))
    places = np.searchsorted(EDGES, apart, side="left")
    counts = np.bincount(places, minlength=len(EDGES) + 1)
    return {"tokens": len(apart), "counts": counts.tolist(), "largest": float(apart.max(initial=0.0))}


def noise_summary(rows: Iterable[Mapping[str, Any]], taus: Sequence[float]) -> dict[str, Any] | None:
    """Share of tokens beyond each threshold by noise alone, and the floor: smaller thresholds count rounding.

    None if no response was scored twice.
    """
    known = list(rows)
    tokens = sum(row["tokens"] for row in known)
    if not tokens:
        return None
    counts = np.sum([row["counts"] for row in known], axis=0)
    # Entry k counts EDGES[k-1] < |D| <= EDGES[k]: from above, the tokens beyond each edge.
    beyond = counts[::-1].cumsum()[::-1][1:]
    quiet = np.flatnonzero(beyond <= FLOOR_SHARE * tokens)
    largest = max(row["largest"] for row in known)
    return {
        "tokens": tokens,
        "responses": len(known),
        "largest": largest,
        "floor": float(EDGES[quiet[0]]) if len(quiet) else largest,
        # The edge at or below a threshold: never fewer tokens than exceed it.
        "beyond": {
            f"{tau:g}": float(beyond[int(np.searchsorted(EDGES, tau, side="right")) - 1] / tokens) for tau in taus
        },
    }


def noise_sentence(noise: Mapping[str, Any] | None) -> str:
    """The finding in words."""
    if noise is None:
        return "Numerical noise was not measured: the smallest deviations may be rounding."
    shares = ", ".join(f"{share:.2%} at {tau}" for tau, share in noise["beyond"].items())
    return (
        f"Numerical noise: c0 scored twice, in different batches, on {noise['tokens']:,} tokens. By noise alone exceed "
        f"tau: {shares}. A threshold below {noise['floor']:.2g} nats counts rounding; the largest difference is "
        f"{noise['largest']:.2g}."
    )
