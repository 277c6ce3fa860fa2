"""Statistics of the study as sums over tokens. Merging partial sums is exact and independent of their order.

D(c) = lT(c) - lT;  S(c) = {t: |D(c)| > tau};  the set of a group is the union over its contexts. For a group of two,
with D+ and D-: overlap = |S+ & S-| / |S+ u S-|, agreement = share of S+ & S- with D+ D- > 0, and the shared deviation
ratio SDR = sum|M| / sum(|M| + |D|) over S+ & S-, with M = (D+ + D-)/2, D = (D+ - D-)/2, |M| + |D| = max(|D+|, |D-|).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calopd.core.contexts import Context
from calopd.core.tsd.relaxation import RelaxationSums, fixed

TAUS = (0.01, 0.05, 0.10)


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

    @classmethod
    def joined(cls, parts: Sequence["TokenColumns"]) -> "TokenColumns":
        if len(parts) == 1:
            return parts[0]
        ids, student, base = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "student", "base")
        )
        return cls(
            ids, student, base, [np.concatenate(column) for column in zip(*(p.probes for p in parts), strict=True)]
        )


class StudySums:
    """Counts and sums over tokens; K thresholds, C contexts, G groups, V token ids."""

    def __init__(self, plan: StudyPlan, vocabulary_size: int) -> None:
        contexts, groups, taus = len(plan.contexts), len(plan.groups), len(plan.taus)
        self.plan = plan
        self.tokens = 0
        self.significant_CK = np.zeros((contexts, taus), np.int64)
        self.both_GGK = np.zeros((groups, groups, taus), np.int64)
        """|S_i & S_j| of two groups; the diagonal is |S_i|."""
        self.joint_GK = np.zeros((groups, taus), np.int64)
        """|S+ & S-|; zero for a group of one."""
        self.agreeing_GK = np.zeros((groups, taus), np.int64)
        self.shared_GK = np.zeros((groups, taus))
        """sum|M| over S+ & S-, in 2^-20 nats."""
        self.largest_GK = np.zeros((groups, taus))
        """sum max(|D+|, |D-|) over S+ & S-, in 2^-20 nats."""
        self.count_V = np.zeros(vocabulary_size, np.int64)
        self.form_count_CVK = np.zeros((contexts, vocabulary_size, taus), np.int64)
        """Occurrences of each token id, by the largest threshold that |D| exceeds."""
        self.form_size_CVK = np.zeros((contexts, vocabulary_size, taus))
        """sum|D| over these, in 2^-20 nats."""
        self.relaxation = {name: RelaxationSums() for name in plan.probe_sets}

    def add(self, tokens: TokenColumns) -> None:
        if not len(tokens.ids):
            return
        deviations = [probe - tokens.base for probe in tokens.probes]
        sizes = [np.abs(deviation) for deviation in deviations]
        self.tokens += len(tokens.ids)
        self._add_sets(sizes)
        for number, pair in enumerate(self.plan.groups.values()):
            if len(pair) == 2:
                self._add_pair(number, *(deviations[place] for place in pair), *(sizes[place] for place in pair))
        self._add_forms(tokens.ids, sizes)
        self._add_relaxation(tokens.base - tokens.student, deviations)

    def _add_sets(self, sizes: list[np.ndarray]) -> None:
        """Count sets and intersections on bitmaps: one operation handles eight tokens."""
        for k, tau in enumerate(self.plan.taus):
            bits = [np.packbits(size > tau) for size in sizes]
            self.significant_CK[:, k] += [_count(part) for part in bits]
            unions = [_reduce(np.bitwise_or, [bits[place] for place in pair]) for pair in self.plan.groups.values()]
            for i, ours in enumerate(unions):
                for j, theirs in enumerate(unions[: i + 1]):
                    self.both_GGK[i, j, k] += (count := _count(ours & theirs))
                    self.both_GGK[j, i, k] += count if i != j else 0

    def _add_pair(self, group: int, first: np.ndarray, second: np.ndarray, one: np.ndarray, other: np.ndarray) -> None:
        """Sums for overlap, agreement and SDR, binned by the number of thresholds that both D+ and D- exceed."""
        joint = np.flatnonzero(np.minimum(one, other) > self.plan.taus[0])
        first, second, one, other = (values.take(joint) for values in (first, second, one, other))
        level = self._level(np.minimum(one, other))
        shared, largest = fixed(np.abs(first + second)), fixed(np.maximum(one, other))
        for sums, weights in (
            (self.joint_GK, None),
            (self.agreeing_GK, (first > 0) == (second > 0)),
            (self.shared_GK, shared),
            (self.largest_GK, largest),
        ):
            by_level = np.bincount(level, weights, len(self.plan.taus) + 1)
            sums[group] += _and_above(by_level).astype(sums.dtype)

    def _add_forms(self, ids: np.ndarray, sizes: list[np.ndarray]) -> None:
        """Count tokens and sum |D| by token id and largest threshold exceeded."""
        self.count_V += np.bincount(ids, minlength=len(self.count_V))
        taus = len(self.plan.taus)
        for place, size in enumerate(sizes):
            chosen = np.flatnonzero(size > self.plan.taus[0])
            size = size.take(chosen)
            key = ids.take(chosen) * np.intp(taus) + (self._level(size) - 1)
            for sums, weights in ((self.form_count_CVK, None), (self.form_size_CVK, fixed(size))):
                sums[place] += np.bincount(key, weights, sums[place].size).reshape(-1, taus)

    def _add_relaxation(self, gap: np.ndarray, deviations: list[np.ndarray]) -> None:
        """Sums for the relaxation curves. `towards` is D signed so that positive moves the teacher to the student."""
        size, side = np.abs(gap), np.copysign(np.float32(1), -gap)
        towards = [side * deviation for deviation in deviations]
        for name, places in self.plan.probe_sets.items():
            width = np.maximum(_reduce(np.maximum, [towards[place] for place in places]), 0)
            self.relaxation[name].add(size, width)

    def _level(self, sizes: np.ndarray) -> np.ndarray:
        """Number of thresholds that each value exceeds."""
        level = (sizes > self.plan.taus[0]).view(np.int8)
        for tau in self.plan.taus[1:]:
            level += (sizes > tau).view(np.int8)
        return level

    def merge(self, other: "StudySums") -> None:
        assert self.plan == other.plan
        self.tokens += other.tokens
        for name in ARRAYS:
            getattr(self, name)[...] += getattr(other, name)
        for name, sums in self.relaxation.items():
            sums.merge(other.relaxation[name])


ARRAYS = (
    "significant_CK", "both_GGK", "joint_GK", "agreeing_GK", "shared_GK", "largest_GK", "count_V",
    "form_count_CVK", "form_size_CVK",
)  # fmt: skip


def _reduce(operation: np.ufunc, arrays: list[np.ndarray]) -> np.ndarray:
    out = arrays[0]
    for array in arrays[1:]:
        out = operation(out, array)
    return out


def _count(bits: np.ndarray) -> int:
    return int(np.bitwise_count(bits).sum())


def _and_above(by_level: np.ndarray) -> np.ndarray:
    """[..., K+1] counts by exact level -> [..., K] counts by minimum level, from level 1 on."""
    return np.cumsum(by_level[..., :0:-1], axis=-1)[..., ::-1]
