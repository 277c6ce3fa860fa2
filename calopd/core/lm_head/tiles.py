"""Size of the tiles in which an LM head computes logits."""

import torch

_ROWS_AND_COLUMNS = {"cpu": (512, 4_096), "cuda": (4_096, 16_384)}


def tile_shape(device: torch.device) -> tuple[int, int]:
    """Rows and vocabulary entries of one tile: small enough for a CPU's caches, large enough for a GPU."""
    return _ROWS_AND_COLUMNS["cpu" if device.type == "cpu" else "cuda"]
