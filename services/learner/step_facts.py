"""What is said of a whole step, put together from its micro-batches and ranks."""

from typing import Any

from calopd.core.types import StepFacts


def merge_facts(facts: list[StepFacts]) -> StepFacts:
    """The facts of all micro-batches of all ranks, in the order of the tickets."""
    order = sorted((index, part, i) for part, fact in enumerate(facts) for i, index in enumerate(fact.indices))

    def column(name: str) -> list[Any]:
        return [getattr(facts[part], name)[i] for _, part, i in order if getattr(facts[part], name)]

    return StepFacts(*(column(name) for name in ("indices", "problem_ids", "lengths", "correct", "mean_gaps")))
