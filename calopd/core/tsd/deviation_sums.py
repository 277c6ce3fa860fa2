"""Statistics of the study as sums over tokens. Merging partial sums is exact and independent of their order.

D(c) = lT(c) - lT;  S(c) = {t: |D(c)| > tau};  the set of a group is the union over its contexts. For a group of two,
with D+ and D-: overlap = |S+ & S-| / |S+ u S-|, agreement = share of S+ & S- with D+ D- > 0, and the shared deviation
ratio SDR = sum|M| / sum(|M| + |D|) over S+ & S-, with M = (D+ + D-)/2, D = (D+ - D-)/2, |M| + |D| = max(|D+|, |D-|).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calopd.core.contexts import Context
from calopd.core.tsd.relaxation import GRID, RelaxationSums

TAUS = (0.01, 0.05, 0.10)
AT_ONCE = 2**14
"""Tokens of one call of the compiled pass: their columns, side by side, fit the cache of a core."""


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """The measurements of a study: the contexts except c0, the thresholds, the groups and the sets of probes."""

    contexts: tuple[str, ...]
    taus: tuple[float, ...]
    """Ascending."""
    groups: Mapping[str, tuple[int, ...]]
    """Name -> indices of its contexts; in a group of two, the positive context is first."""
    probe_sets: Mapping[str, tuple[int, ...]]
    """Sets of probes to evaluate Cal-OPD with: every group, and the requested unions of groups."""

    @classmethod
    def of(
        cls, contexts: Sequence[str], taus: Sequence[float] = TAUS, unions: Sequence[Sequence[str]] = ()
    ) -> "StudyPlan":
        """Plan for these contexts: `inst+` and `inst-` form the group `inst`; any other context is its own group."""
        named = {name: Context.named(name) for name in contexts}
        groups: dict[str, list[int]] = {}
        for place, name in enumerate(contexts):
            groups.setdefault(named[name].group, []).append(place)
        for name, places in groups.items():
            places.sort(key=lambda place: "+-".find(named[contexts[place]].polarity))
            if len(places) > 2:
                raise ValueError(f"group {name} has {len(places)} contexts, expected `{name}+` and `{name}-`")
        ordered = {name: tuple(places) for name, places in groups.items()}
        sets = dict(ordered)
        for union in unions:
            if unknown := [name for name in union if name not in ordered]:
                raise ValueError(f"unknown probe group {unknown[0]!r}; the study has {', '.join(ordered)}")
            sets[" + ".join(union)] = tuple(place for name in union for place in ordered[name])
        return cls(tuple(contexts), tuple(sorted(taus)), ordered, sets)

    @property
    def pairs(self) -> dict[str, tuple[int, int]]:
        return {name: (places[0], places[1]) for name, places in self.groups.items() if len(places) == 2}


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """Response tokens of a study: ids int32 [T], log-probabilities float32 [T]."""

    ids: np.ndarray
    student: np.ndarray
    base: np.ndarray
    probes: Sequence[np.ndarray]
    """One [T] array per context, in the order of the plan."""


class StudySums:
    """Counts and sums over tokens; K thresholds, C contexts, G groups, V token ids, P sets of probes."""

    def __init__(self, plan: StudyPlan, vocabulary_size: int) -> None:
        contexts, groups, taus = len(plan.contexts), len(plan.groups), len(plan.taus)
        self.plan = plan
        self.tokens = 0
        self.unions_GGK = np.zeros((groups, groups, taus))
        """|S_i & S_j| of groups j <= i; the diagonal is |S_i|."""
        self.pairs_GL4 = np.zeros((groups, taus + 1, 4))
        """Of S+ & S-, by the number of thresholds that both D+ and D- exceed: tokens, those that agree, sum 2|M| and
        sum max(|D+|, |D-|) in 2^-20 nats; level 0 is not used. Zero for a group of one."""
        self.count_V = np.zeros(vocabulary_size, np.int64)
        self.forms_VCL2 = np.zeros((vocabulary_size, contexts, taus + 1, 2))
        """Of each token id, by the number of thresholds that |D| exceeds: occurrences, and sum|D| in 2^-20 nats; level
        0 is not used."""
        self.relaxation_PB3 = np.zeros((len(plan.probe_sets), len(GRID) + 1, 3))

    def add(self, tokens: TokenColumns) -> None:
        # numba takes a second to import, and only this needs it.
        from calopd.core.tsd.token_pass import add_tokens

        columns = (tokens.student, tokens.base, *tokens.probes)
        taus = np.array(self.plan.taus, np.float32)
        groups, probe_sets = _table(self.plan.groups, 2), _table(self.plan.probe_sets, len(self.plan.contexts))
        for start in range(0, len(tokens.ids), AT_ONCE):
            rows = slice(start, start + AT_ONCE)
            add_tokens(
                tokens.ids[rows],
                np.stack([column[rows] for column in columns]),
                taus,
                groups,
                probe_sets,
                self.unions_GGK,
                self.pairs_GL4,
                self.count_V,
                self.forms_VCL2,
                self.relaxation_PB3,
            )
        self.tokens += len(tokens.ids)

    def merge(self, other: "StudySums") -> None:
        assert self.plan == other.plan
        self.tokens += other.tokens
        for name in ARRAYS:
            getattr(self, name)[...] += getattr(other, name)

    @property
    def both_GGK(self) -> np.ndarray:
        """|S_i & S_j| of two groups; the diagonal is |S_i|."""
        others = ~np.eye(len(self.unions_GGK), dtype=bool)
        return (self.unions_GGK + self.unions_GGK.transpose(1, 0, 2) * others[:, :, None]).astype(np.int64)

    @property
    def joint_GK(self) -> np.ndarray:
        """|S+ & S-|; zero for a group of one."""
        return _and_above(self.pairs_GL4[:, 1:, 0]).astype(np.int64)

    @property
    def agreeing_GK(self) -> np.ndarray:
        return _and_above(self.pairs_GL4[:, 1:, 1]).astype(np.int64)

    @property
    def shared_GK(self) -> np.ndarray:
        """sum 2|M| over S+ & S-, in 2^-20 nats."""
        return _and_above(self.pairs_GL4[:, 1:, 2])

    @property
    def largest_GK(self) -> np.ndarray:
        """sum max(|D+|, |D-|) over S+ & S-, in 2^-20 nats."""
        return _and_above(self.pairs_GL4[:, 1:, 3])

    @property
    def significant_CK(self) -> np.ndarray:
        return _and_above(self.forms_VCL2[:, :, 1:, 0].sum(0)).astype(np.int64)

    @property
    def form_count_CVK(self) -> np.ndarray:
        """Occurrences of each token id, by the largest threshold that |D| exceeds."""
        return self.forms_VCL2[:, :, 1:, 0].transpose(1, 0, 2).astype(np.int64)

    @property
    def form_size_CVK(self) -> np.ndarray:
        """sum|D| over these, in 2^-20 nats."""
        return self.forms_VCL2[:, :, 1:, 1].transpose(1, 0, 2)

    @property
    def relaxation(self) -> dict[str, RelaxationSums]:
        """By the name of the set of probes."""
        return {
            name: RelaxationSums(bins.T) for name, bins in zip(self.plan.probe_sets, self.relaxation_PB3, strict=True)
        }


ARRAYS = ("unions_GGK", "pairs_GL4", "count_V", "forms_VCL2", "relaxation_PB3")


def _table(named: Mapping[str, tuple[int, ...]], width: int) -> np.ndarray:
    """The contexts of each entry as rows of equal width; -1 = none."""
    return np.array([[*places, *[-1] * (width - len(places))] for places in named.values()], np.int64)


def _and_above(by_level: np.ndarray) -> np.ndarray:
    """[..., K] counts by exact level, from level 1 on -> counts by minimum level."""
    return np.cumsum(by_level[..., ::-1], axis=-1)[..., ::-1]
