"""The pass over the tokens of a study, compiled by numba: every value is read once, every sum is formed on the way.

Tokens are handled in blocks, whose deviations stay in the cache of a core. Sums by token id and by pair are formed for
the tokens that move under some context, without branches: a context under which they do not move counts at level 0,
which nobody reads. The sums of one token id under one context fill a cache line. The compiled code is kept beside this
file, so that only the first study pays for the compilation.
"""

from typing import Any

import numpy as np
from numba import njit, types

from calopd.core.tsd.relaxation import FIRST_BIN, GRID, MANTISSA_SHIFT, RESOLUTION

BLOCK = 1_024
TINY = np.finfo(np.float32).tiny
LAST_BIN = len(GRID)
_ids, _numbers = types.Array(types.int32, 1, "C", readonly=True), types.Array(types.float32, 1, "C", readonly=True)
SIGNATURE = types.void(
    _ids, types.float32[:, ::1], _numbers, types.int64[:, ::1], types.int64[:, ::1],
    types.float64[:, :, ::1], types.float64[:, :, ::1], types.int64[::1], types.float64[:, :, :, ::1],
    types.float64[:, :, ::1],
)  # fmt: skip


@njit(SIGNATURE, nogil=True, cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def add_tokens(
    ids_T: Any, values_XT: Any, taus_K: Any, groups_G2: Any, sets_PC: Any,
    union_GGL: Any, pair_GL4: Any, count_V: Any, forms_VCL2: Any, bins_PB3: Any,
) -> None:  # fmt: skip
    """Add tokens to all sums. L is a level: the number of thresholds that a deviation exceeds, 0 to K.

    `values_XT` are the log-probabilities of the student, of the teacher under c0, and under the other contexts.
    `groups_G2` are the contexts of each group, `sets_PC` those of each set of probes; -1 = none.
    """
    contexts, taus, groups = len(values_XT) - 2, len(taus_K), len(groups_G2)
    deviation = np.empty((contexts, BLOCK), np.float32)
    level = np.empty((contexts, BLOCK), np.int32)
    union = np.empty((groups, BLOCK), np.int32)
    size, side, width = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    critical = np.empty(BLOCK, np.float32)
    bits = critical.view(np.int32)
    moving = np.empty(BLOCK, np.uint64)
    unsigned_ids = ids_T.view(np.uint32)
    for start in range(0, len(ids_T), BLOCK):
        count = min(BLOCK, len(ids_T) - start)
        ids = unsigned_ids[start : start + count]
        student, base = values_XT[0, start : start + count], values_XT[1, start : start + count]
        for c in range(contexts):
            probe, own, levels = values_XT[c + 2, start : start + count], deviation[c], level[c]
            for t in range(count):
                own[t] = probe[t] - base[t]
                levels[t] = 0
            for k in range(taus):
                tau = taus_K[k]
                for t in range(count):
                    levels[t] += np.int32(1) if abs(own[t]) > tau else np.int32(0)
        some = 0
        for t in range(count):
            count_V[ids[t]] += 1
            levels_or = level[0, t]
            for c in range(1, contexts):
                levels_or |= level[c, t]
            moving[some] = t
            some += 1 if levels_or else 0
        for t in moving[:some]:
            forms_CL2 = forms_VCL2[ids[t]]
            for c in range(np.uint64(contexts)):
                own_2 = forms_CL2[c, np.uint32(level[c, t])]
                own_2[0] += 1
                own_2[1] += np.rint(abs(deviation[c, t]) * RESOLUTION)
        for g in range(groups):
            first, second = np.uint64(groups_G2[g, 0]), np.uint64(groups_G2[g, 1])
            if groups_G2[g, 1] < 0:
                union[g, :count] = level[first, :count]
                continue
            for t in range(count):
                union[g, t] = max(level[first, t], level[second, t])
            for t in moving[:some]:
                d, e = deviation[first, t], deviation[second, t]
                sums_4 = pair_GL4[g, np.uint32(min(level[first, t], level[second, t]))]
                sums_4[0] += 1
                sums_4[1] += 1 if (d > 0) == (e > 0) else 0
                sums_4[2] += np.rint(abs(d + e) * RESOLUTION)
                sums_4[3] += np.rint(max(abs(d), abs(e)) * RESOLUTION)
        for i in range(groups):
            for j in range(i + 1):
                for k in range(1, taus + 1):
                    above = 0
                    for t in range(count):
                        above += 1 if min(union[i, t], union[j, t]) >= k else 0
                    union_GGL[i, j, k - 1] += above
        for t in range(count):
            gap = base[t] - student[t]
            size[t] = abs(gap)
            side[t] = np.copysign(np.float32(1), -gap)
        for p in range(len(sets_PC)):
            width[:count] = 0
            for place in sets_PC[p]:
                if place >= 0:
                    for t in range(count):
                        width[t] = max(width[t], side[t] * deviation[place, t])
            for t in range(count):
                critical[t] = size[t] / max(width[t], TINY)
            for t in range(count):
                # One less in the last bit, so that a bin includes its upper edge: at lam = |a| / w the advantage is 0.
                at = ((bits[t] - 1) >> MANTISSA_SHIFT) - (FIRST_BIN - 1)
                sums_3 = bins_PB3[p, min(max(at, 0), LAST_BIN)]
                sums_3[0] += 1
                sums_3[1] += np.rint(size[t] * RESOLUTION)
                sums_3[2] += np.rint(width[t] * RESOLUTION)
