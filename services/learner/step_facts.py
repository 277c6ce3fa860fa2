"""What is said of a whole step, put together from its micro-batches and ranks."""

from typing import Any

import numpy as np

from calopd.core.types import StepFacts


def merge_facts(facts: list[StepFacts]) -> StepFacts:
    """The facts of all micro-batches of all ranks, in the order of the tickets."""
    order = sorted((index, part, i) for part, fact in enumerate(facts) for i, index in enumerate(fact.indices))

    def column(name: str) -> list[Any]:
        return [getattr(facts[part], name)[i] for _, part, i in order if getattr(facts[part], name)]

    return StepFacts(*(column(name) for name in ("indices", "problem_ids", "lengths", "correct", "mean_gaps")))


def rollout_shape(lengths: list[int], sums: dict[str, float]) -> dict[str, Any]:
    """What the step's responses were like."""
    count = max(1.0, sums.get("trajectories", 0.0))
    return {
        "response_length_mean": float(np.mean(lengths)) if lengths else 0.0,
        "response_length_p50": float(np.percentile(lengths, 50)) if lengths else 0.0,
        "response_length_p95": float(np.percentile(lengths, 95)) if lengths else 0.0,
        "accuracy": sums.get("correct", 0.0) / count,
        "answered_after_think_share": sums.get("after_think", 0.0) / count,
        "truncated_share": sums.get("truncated", 0.0) / count,
        "staleness": sums.get("staleness", 0.0) / count,
    }
