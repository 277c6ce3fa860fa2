"""Learning rate schedule: linear warm-up, then half a cosine to 0 at the end of the run."""

import math


def learning_rate(step: int, *, steps: int, peak: float, warmup_steps: int) -> float:
    """Learning rate of optimizer step `step`, counted from 0; it reaches 0 at `steps`."""
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(1, steps - warmup_steps)
    return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
