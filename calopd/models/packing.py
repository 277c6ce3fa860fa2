"""Many sequences in one forward pass, without padding; shared prefixes are computed once.

Linear layers work row by row, so that a prefix that contexts or rollouts of one problem share needs one set of rows.
Only attention looks across rows: it gathers those of each sequence and runs in buckets of similar length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

ATTENTION = "calopd_packed"
"""The name of `attend` among the attention functions of transformers."""
MAX_PADDING = 0.10


@dataclass(frozen=True, slots=True)
class Bucket:
    """Sequences that attention computes together, padded on the right, which causal attention ignores."""

    rows_BL: Tensor
    """Row of each position; padding repeats the last."""
    fresh: Tensor
    """Positions (of B * L) whose attention no other sequence computes ..."""
    fresh_rows: Tensor
    """... and their rows."""


@dataclass(frozen=True, slots=True)
class Packed:
    ids: Tensor
    """[1, N]: every different row once."""
    positions: Tensor
    """[1, N]: position of each row in its sequences."""
    rows: list[np.ndarray]
    """The rows of each sequence, in the order given."""
    buckets: list[Bucket]
    attended: int
    """Positions that attention computes, padding included."""

    @property
    def computed(self) -> int:
        return self.ids.shape[1]

    def to(self, device: torch.device) -> "Packed":
        buckets = [Bucket(*(t.to(device) for t in (b.rows_BL, b.fresh, b.fresh_rows))) for b in self.buckets]
        return Packed(self.ids.to(device), self.positions.to(device), self.rows, buckets, self.attended)


def pack(sequences: Sequence[np.ndarray], *, share: bool = True) -> Packed:
    """Rows for all of `sequences`; with `share`, a shared prefix has its rows once.

    In lexicographic order, the longest prefix shared with any earlier sequence is the one shared with the previous one.
    """
    order = sorted(range(len(sequences)), key=lambda i: sequences[i].astype(">u4").tobytes())
    rows: list[np.ndarray] = [np.empty(0, np.int64)] * len(sequences)
    shared = [0] * len(sequences)
    ids, positions = [], []
    count = 0
    for before, i in zip([None, *order], order, strict=False):
        tokens = sequences[i]
        if before is not None and share:
            shared[i] = _common(sequences[before], tokens)
            rows[i] = rows[before][: shared[i]]
        new = len(tokens) - shared[i]
        rows[i] = np.concatenate((rows[i], np.arange(count, count + new)))
        count += new
        ids.append(tokens[shared[i] :])
        positions.append(np.arange(shared[i], len(tokens)))
    buckets = [_bucket([rows[i] for i in members], [shared[i] for i in members]) for members in _buckets(rows)]
    return Packed(
        torch.from_numpy(np.concatenate(ids).astype(np.int64))[None],
        torch.from_numpy(np.concatenate(positions))[None],
        rows,
        buckets,
        sum(bucket.rows_BL.numel() for bucket in buckets),
    )


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common prefix."""
    length = min(len(a), len(b))
    different = a[:length] != b[:length]
    return int(different.argmax()) if different.any() else length


def _buckets(rows: list[np.ndarray]) -> list[list[int]]:
    """Group sequences by length so that padding stays within MAX_PADDING."""
    buckets: list[list[int]] = []
    total = 0
    for i in sorted(range(len(rows)), key=lambda i: -len(rows[i])):
        longest = len(rows[buckets[-1][0]]) if buckets else 0
        padded = longest * (len(buckets[-1]) + 1) if buckets else 0
        if not buckets or padded - total - len(rows[i]) > MAX_PADDING * padded:
            buckets.append([])
            total = 0
        buckets[-1].append(i)
        total += len(rows[i])
    return buckets


def _bucket(rows: list[np.ndarray], shared: list[int]) -> Bucket:
    longest = max(map(len, rows))
    rows_BL = np.stack([np.pad(r, (0, longest - len(r)), mode="edge") for r in rows])
    fresh = np.concatenate([b * longest + np.arange(shared[b], len(r)) for b, r in enumerate(rows)])
    return Bucket(torch.from_numpy(rows_BL), torch.from_numpy(fresh), torch.from_numpy(rows_BL.reshape(-1)[fresh]))


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: Packed,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of `packed`; query, key and value are [1, heads, N, dim]."""
    out = query.new_empty(query.shape[2], query.shape[1], value.shape[-1])
    for bucket in packed.buckets:
        count, longest = bucket.rows_BL.shape
        flat = bucket.rows_BL.reshape(-1)
        q, k, v = (
            t[0].index_select(1, flat).unflatten(1, (count, longest)).transpose(0, 1) for t in (query, key, value)
        )
        window = None
        if sliding_window is not None and longest > sliding_window:
            distance = torch.arange(longest, device=q.device)[:, None] - torch.arange(longest, device=q.device)
            window = (distance >= 0) & (distance < sliding_window)
        attended = scaled_dot_product_attention(
            q, k, v, attn_mask=window, is_causal=window is None, scale=scaling, enable_gqa=True
        )
        out[bucket.fresh_rows] = attended.transpose(1, 2).reshape(count * longest, *out.shape[1:])[bucket.fresh]
    return out[None], None
