"""The contents of analysis.json from the sums: shares, ratios, lists of token forms, and relaxation curves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calopd.core.tsd.deviation_sums import StudySums
from calopd.core.tsd.relaxation import GRID
from calopd.core.tsd.token_forms import KINDS, FormTable, kind, shared

LIST_SIZES = (18, 24)
"""Lengths of the paper's lists of forms."""
FORM_SHARE = 3_000
"""The paper lists forms with more than 20,000 occurrences in 60 million tokens: 1 in 3,000."""


@dataclass(frozen=True, slots=True)
class Overview:
    lengths: list[int]
    """Ascending."""
    judged: int
    """Rollouts whose answer was checked."""
    correct: int
    truncated: int


def summarise(sums: StudySums, overview: Overview, table: FormTable, frequent: FormTable, limit: int) -> dict[str, Any]:
    """The contents of analysis.json; thresholds are string keys (`0.01`). `frequent` are the forms over the limit."""
    lengths = overview.lengths
    owner = np.array([KINDS.index(kind(form)) for form in table.forms], np.intp)
    return {
        "tokens": sums.tokens,
        "rollouts": len(lengths),
        "judged": overview.judged,
        "correct": overview.correct,
        "truncated": overview.truncated,
        "length": {"mean": sums.tokens / max(len(lengths), 1), "median": float(np.median(lengths)) if lengths else 0.0},
        "taus": list(sums.plan.taus),
        "contexts": list(sums.plan.contexts),
        "groups": {name: [sums.plan.contexts[c] for c in places] for name, places in sums.plan.groups.items()},
        "prevalence": _by_tau(sums, prevalence),
        "retention": _by_tau(sums, retention),
        "consistency": _by_tau(sums, consistency),
        "forms": _by_tau(sums, lambda sums, k: form_lists(sums, k, frequent, limit)),
        "kinds": _by_tau(sums, lambda sums, k: kinds(sums, k, table, owner)),
        "relaxation": {
            "grid": GRID.tolist(),
            "probes": {
                name: {"retained": part.retained(), "zero": part.zero()} for name, part in sums.relaxation.items()
            },
        },
    }


def _by_tau(sums: StudySums, make: Any) -> dict[str, Any]:
    return {f"{tau:g}": make(sums, k) for k, tau in enumerate(sums.plan.taus)}


def share(part: float, whole: float) -> float | None:
    """part / whole, or None if whole is zero."""
    return float(part) / float(whole) if whole else None


def prevalence(sums: StudySums, k: int) -> dict[str, Any]:
    """|S| / tokens of every context and of every group."""
    counts = dict(zip(sums.plan.contexts, sums.significant_CK[:, k].tolist(), strict=True))
    unions = {name: int(sums.both_GGK[g, g, k]) for g, name in enumerate(sums.plan.groups)}
    return {
        "contexts": {name: {"tokens": n, "share": share(n, sums.tokens)} for name, n in counts.items()},
        "groups": {name: {"tokens": n, "share": share(n, sums.tokens)} for name, n in unions.items()},
    }


def retention(sums: StudySums, k: int) -> dict[str, dict[str, float | None]]:
    """Ret(i -> j) = |S_i & S_j| / |S_i| for two groups."""
    both = sums.both_GGK[:, :, k]
    names = list(sums.plan.groups)
    return {one: {other: share(both[i, j], both[i, i]) for j, other in enumerate(names)} for i, one in enumerate(names)}


def consistency(sums: StudySums, k: int) -> dict[str, dict[str, float | None]]:
    """Overlap, agreement and SDR of every group of two."""
    out = {}
    for g, (name, places) in enumerate(sums.plan.groups.items()):
        if len(places) == 2:
            joint = int(sums.joint_GK[g, k])
            out[name] = {
                "overlap": share(joint, sums.both_GGK[g, g, k]),
                "agreement": share(sums.agreeing_GK[g, k], joint),
                # |M| = |D+ + D-| / 2, and |M| + |D| = max(|D+|, |D-|)
                "sdr": share(sums.shared_GK[g, k] / 2, sums.largest_GK[g, k]),
                "joint_tokens": joint,
            }
    return out


def form_lists(sums: StudySums, k: int, frequent: FormTable, limit: int) -> dict[str, Any]:
    """Forms with the largest and smallest rho by context, and the overlap of these lists across contexts."""
    length = min(max(LIST_SIZES), len(frequent.forms) // 2)
    tops, bottoms = {}, {}
    for c, name in enumerate(sums.plan.contexts):
        ranked = frequent.ranked(c, k)
        tops[name] = [_entry(frequent, f, c, k) for f in ranked[:length]]
        bottoms[name] = [_entry(frequent, f, c, k) for f in ranked[: -length - 1 : -1]] if length else []
    shared_lists = {
        str(size): {"top": _shared(tops, size), "bottom": _shared(bottoms, size)}
        for size in LIST_SIZES
        if size <= length
    }
    return {
        "more_often_than": limit,
        "forms": len(frequent.forms),
        "top": tops,
        "bottom": bottoms,
        "means": {name: {"top": _means(tops[name]), "bottom": _means(bottoms[name])} for name in tops},
        "shared": shared_lists,
    }


def _entry(table: FormTable, f: int, c: int, k: int) -> dict[str, Any]:
    return {
        "form": table.forms[f],
        "kind": kind(table.forms[f]),
        "count": int(table.count_F[f]),
        "rho": float(table.rho_FCK[f, c, k]),
        "mean": float(table.mean_FCK[f, c, k]),
    }


def _means(entries: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Unweighted means, as in the last row of the paper's table."""
    return {key: share(sum(entry[key] for entry in entries), len(entries)) for key in ("rho", "mean")}


def _shared(lists: dict[str, list[dict[str, Any]]], size: int) -> dict[str, Any]:
    table, everywhere = shared({name: [entry["form"] for entry in rows[:size]] for name, rows in lists.items()})
    return {"pairs": table, "in_all": everywhere}


def kinds(sums: StudySums, k: int, table: FormTable, owner: np.ndarray) -> dict[str, Any]:
    """rho over all tokens of a kind, by context: is self-deviation on words or on mathematics?"""
    out = {}
    for number, name in enumerate(KINDS):
        members = owner == number
        count = int(table.count_F[members].sum())
        significant_C = table.significant_FCK[members, :, k].sum(axis=0)
        rho = {context: share(significant_C[c], count) for c, context in enumerate(sums.plan.contexts)}
        out[name] = {"tokens": count, "rho": rho}
    return out
