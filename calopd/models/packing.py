"""Many sequences in one forward pass, without padding; shared prefixes are computed once.

Linear layers work row by row, so that a prefix that contexts or rollouts of one problem share needs one set of rows.
Only attention looks across rows: by `varlen_attn` on CUDA, in buckets of similar length elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

from calopd.core.errors import ConfigError

ATTENTION = "calopd_packed"
"""The name of `attend` among the attention functions of transformers."""
LAYER_TYPES = {"full_attention", "sliding_attention"}
"""Layers whose attention is a function of one sequence's rows; recurrent ones would carry a state into the next."""
UNSUPPORTED = ("softcap", "s_aux", "position_bias")
"""Arguments that change the scores, which only some models pass."""
MAX_PADDING = 0.10


@dataclass(frozen=True, slots=True)
class Buckets:
    """Sequences of similar length, padded on the right, where causal attention of a real token never looks."""

    rows: Tensor
    """[P]: row of each position of all buckets, one after the other; padding repeats the last row of its sequence."""
    places: Tensor
    """[N]: the position (of P) that computes the attention of each row."""
    shapes: list[tuple[int, int]]
    """Sequences of each bucket, and their padded length."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The same without padding, for kernels that take the borders of sequences.

    The rows that a sequence adds are consecutive, and they are its end: its queries are a run of all rows. Its keys are
    a run of `key_rows`.
    """

    query_borders: Tensor
    """[S + 1], int32."""
    key_borders: Tensor
    key_rows: Tensor | None
    """The rows of each sequence, one after the other; None if that is every row once, as without shared prefixes."""
    longest_query: int
    longest_key: int


@dataclass(frozen=True, slots=True)
class Packed:
    ids: Tensor
    """[1, N]: every different row once."""
    positions: Tensor
    """[1, N]: position of each row in its sequences."""
    rows: list[np.ndarray]
    """The rows of each sequence, in the order given."""
    buckets: Buckets
    runs: Runs

    @property
    def computed(self) -> int:
        return self.ids.shape[1]

    @property
    def padding(self) -> int:
        """Positions that attention computes for padding if it runs in buckets."""
        return self.buckets.rows.numel() - sum(map(len, self.rows))

    def to(self, device: torch.device) -> "Packed":
        b, r = self.buckets, self.runs
        return Packed(
            self.ids.to(device),
            self.positions.to(device),
            self.rows,
            Buckets(b.rows.to(device), b.places.to(device), b.shapes),
            Runs(
                r.query_borders.to(device),
                r.key_borders.to(device),
                None if r.key_rows is None else r.key_rows.to(device),
                r.longest_query,
                r.longest_key,
            ),
        )


def pack(sequences: Sequence[np.ndarray], *, share: bool = True) -> Packed:
    """Rows for all of `sequences`; with `share`, a shared prefix has its rows once.

    In lexicographic order, the longest prefix shared with any earlier sequence is the one shared with the previous one.
    """
    order = list(range(len(sequences)))
    shared = [0] * len(sequences)
    if share:
        order.sort(key=lambda i: sequences[i].astype(">u4").tobytes())
        for before, i in pairwise(order):
            shared[i] = _common(sequences[before], sequences[i])
    rows: list[np.ndarray] = [np.empty(0, np.int64)] * len(sequences)
    count = 0
    for before, i in zip([order[0], *order], order, strict=False):
        new = len(sequences[i]) - shared[i]
        rows[i] = np.concatenate((rows[before][: shared[i]], np.arange(count, count + new)))
        count += new
    return Packed(
        torch.from_numpy(np.concatenate([sequences[i][shared[i] :] for i in order]).astype(np.int64))[None],
        torch.from_numpy(np.concatenate([np.arange(shared[i], len(sequences[i])) for i in order]))[None],
        rows,
        _buckets(rows, shared, count),
        _runs([rows[i] for i in order], [shared[i] for i in order]),
    )


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common prefix."""
    length = min(len(a), len(b))
    different = a[:length] != b[:length]
    return int(different.argmax()) if different.any() else length


def _grouped(lengths: list[int]) -> list[list[int]]:
    """Group sequences by length so that padding stays within MAX_PADDING."""
    groups: list[list[int]] = []
    total = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padded = lengths[groups[-1][0]] * (len(groups[-1]) + 1) if groups else 0
        if not groups or padded - total - lengths[i] > MAX_PADDING * padded:
            groups.append([])
            total = 0
        groups[-1].append(i)
        total += lengths[i]
    return groups


def _buckets(rows: list[np.ndarray], shared: list[int], count: int) -> Buckets:
    padded, shapes = [], []
    places = np.empty(count, np.int64)
    start = 0
    for members in _grouped(list(map(len, rows))):
        longest = len(rows[members[0]])
        for i in members:
            padded.append(np.pad(rows[i], (0, longest - len(rows[i])), mode="edge"))
            places[rows[i][shared[i] :]] = np.arange(start + shared[i], start + len(rows[i]))
            start += longest
        shapes.append((len(members), longest))
    return Buckets(torch.from_numpy(np.concatenate(padded)), torch.from_numpy(places), shapes)


def _runs(rows: list[np.ndarray], shared: list[int]) -> Runs:
    """Rows and shared prefixes are those of the sequences in the order of their rows."""
    # A sequence that another one begins with or repeats has no rows of its own to compute.
    kept = [(r, len(r) - prefix) for r, prefix in zip(rows, shared, strict=True) if len(r) > prefix]
    queries, keys = [new for _, new in kept], [len(r) for r, _ in kept]
    return Runs(
        _borders(queries),
        _borders(keys),
        torch.from_numpy(np.concatenate([r for r, _ in kept])) if queries != keys else None,
        max(queries),
        max(keys),
    )


def _borders(lengths: list[int]) -> Tensor:
    return torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32))


def use_packed_attention(key: str, lm: Any) -> None:
    """Let `lm` attend over packed rows; `key` is the setting that names it, for error messages."""
    from transformers import AttentionInterface

    kind = type(lm).__name__
    others = set(getattr(lm.config.get_text_config(), "layer_types", None) or ()) - LAYER_TYPES
    if others:
        raise ConfigError(
            f"{key}: {kind} has layers of {', '.join(sorted(others))}: only attention layers are supported"
        )
    if not lm._supports_attention_backend:
        raise ConfigError(f"{key}: {kind} has attention of its own, which cannot work on packed sequences")
    AttentionInterface.register(ATTENTION, attend)
    lm.set_attn_implementation(ATTENTION)


def has_kernel(device: torch.device, dtype: torch.dtype, *head_sizes: int) -> bool:
    """Whether `varlen_attn` computes attention there: bfloat16 on CUDA, heads that its flash attention knows."""
    known = len(set(head_sizes)) <= 1 and all(size % 8 == 0 and size <= 256 for size in head_sizes)
    return device.type == "cuda" and dtype == torch.bfloat16 and known


@torch.compiler.disable  # type: ignore[untyped-decorator]
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
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of `packed`; query, key and value are [1, heads, N, dim]."""
    for name in UNSUPPORTED:
        if others.get(name) is not None:
            raise ConfigError(f"{type(module).__name__} asks for {name}, which packed attention does not support")
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    if has_kernel(q.device, q.dtype, q.shape[-1], v.shape[-1]):
        return _in_runs(q, k, v, packed.runs, scaling, sliding_window)[None], None
    return _in_buckets(q, k, v, packed.buckets, scaling, sliding_window)[None], None


def _in_runs(q: Tensor, k: Tensor, v: Tensor, runs: Runs, scaling: float | None, window: int | None) -> Tensor:
    """[N, heads, dim] each. The kernel aligns causality to the end: the queries are the last rows of their keys."""
    if runs.key_rows is not None:
        k, v = k.index_select(0, runs.key_rows), v.index_select(0, runs.key_rows)
    out = varlen_attn(
        q,
        k,
        v,
        runs.query_borders,
        runs.key_borders,
        runs.longest_query,
        runs.longest_key,
        scale=scaling,
        # A window of w rows is the row itself and w - 1 before it.
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
    )
    assert isinstance(out, Tensor)
    return out


def _in_buckets(q: Tensor, k: Tensor, v: Tensor, buckets: Buckets, scaling: float | None, window: int | None) -> Tensor:
    """[N, heads, dim] each. One gather for all buckets, so that its gradient is one sum into the rows."""
    sizes = [count * longest for count, longest in buckets.shapes]
    parts = zip(*(t.index_select(0, buckets.rows).split(sizes) for t in (q, k, v)), strict=True)
    attended = []
    for shape, part in zip(buckets.shapes, parts, strict=True):
        q, k, v = (t.unflatten(0, shape).transpose(1, 2) for t in part)
        attended.append(_causal(q, k, v, scaling, window).transpose(1, 2).flatten(0, 1))
    return torch.cat(attended).index_select(0, buckets.places)


def _causal(q: Tensor, k: Tensor, v: Tensor, scaling: float | None, window: int | None) -> Tensor:
    """[B, heads, L, dim] each."""
    mask = None
    length = q.shape[2]
    if window is not None and length > window:
        distance = torch.arange(length, device=q.device)[:, None] - torch.arange(length, device=q.device)
        mask = (distance >= 0) & (distance < window)
    if q.is_cuda:
        # The kernel that serves float32 on CUDA does not know groups; without it, all L x L scores are held.
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    return scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
    )
