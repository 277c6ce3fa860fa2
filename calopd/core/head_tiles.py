"""Sizes of the tiles in which an LM head computes logits, and of the pieces in which a CPU multiplies."""

PIECES = (512, 256, 128, 64)
"""Numbers of tokens of a product on a CPU, without the rest."""
TILE = 16_384
"""Vocabulary entries that a GPU multiplies at once."""
_CPU_BUFFER = 160 * 2**20
"""Bytes of logits that the learner's head holds at once on a CPU: rows are cut to fit, down to the smallest piece."""
_CPU_TILE = 2**20
"""Logits in one of its blocks: few enough for the caches, and so many that the products are fast."""


def tile_shape(*, on_cuda: bool) -> tuple[int, int]:
    """Rows and vocabulary entries of one tile: small enough for a CPU's caches, large enough for a GPU."""
    return (4_096, TILE) if on_cuda else (512, 4_096)


def objective_shape(vocabulary: int, rows: int, *, on_cuda: bool) -> tuple[int, int]:
    """Rows of the learner's buffer of logits, at most `rows`, and vocabulary entries of one of its blocks."""
    if on_cuda:
        return rows, TILE
    limit = min(rows, max(PIECES[-1], _CPU_BUFFER // (4 * vocabulary)))
    rows = next((size for size in PIECES if size <= limit), limit)
    return rows, max(_CPU_TILE // rows, 1_024)
