"""Demo responses: correct arithmetic with discourse words that depend on the writer and the context.

Every slot of a response (opener, connector, remark, closer, final sentence) has a few phrases. A phrase has a
log-weight for the teacher and a "deliberation" score. The student prefers phrases with a higher deliberation score than
the teacher does. An intervention in the prompt shifts the teacher along the same score (the part common to both
polarities) and, less, along a separate direction (the polarity part). Arithmetic never depends on the context, so the
teacher's self-deviation is on the discourse words by construction.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from calopd.core.contexts import Context
from examples.word_problems import Problem

# slot -> (phrase, the teacher's log-weight, deliberation score)
SLOTS: dict[str, tuple[tuple[str, float, float], ...]] = {
    "opener": (
        ("Okay, let me think.", 0.4, 0.3),
        ("Let me see.", 0.6, -0.4),
        ("We solve this step by step.", 0.9, -0.9),
        ("Hmm, let me read this again.", -0.8, 1.3),
        ("First, I note the numbers.", 0.3, -0.3),
        ("Alright, maybe I should go slowly.", -0.9, 1.2),
    ),
    "connector": (
        ("So", 0.8, -0.6),
        ("Then", 0.7, -0.7),
        ("Therefore", 0.1, -0.3),
        ("Now,", 0.3, -0.1),
        ("Hmm, so", -0.9, 1.1),
        ("Maybe", -1.0, 1.2),
        ("Actually,", -0.9, 1.0),
    ),
    "remark": (
        ("", 1.5, -0.9),
        ("Good.", 0.2, -0.4),
        ("Wait, let me check.", -0.6, 1.2),
        ("However, I am not sure.", -1.3, 1.4),
        ("That seems right.", -0.1, 0.3),
    ),
    "closer": (
        ("That is all.", 0.8, -0.7),
        ("So we are done.", 0.7, -0.5),
        ("Okay, it all fits.", 0.1, 0.3),
        ("Perhaps that is it.", -0.9, 1.2),
        ("But wait, yes, it holds.", -1.0, 1.1),
    ),
    "final": (
        ("The answer is", 0.9, -0.6),
        ("Therefore, the answer is", 0.3, 0.0),
        ("Thus we get", 0.1, -0.2),
        ("In the end it seems to be", -1.0, 1.2),
    ),
}
STUDENT_SHIFT = 0.45
COMMON = {"inst": 0.40, "eval": 0.40, "ans": 0.55, "sol": 1.00}
POLARITY = {"inst": 0.20, "eval": 0.20, "ans": 0.15, "sol": 0.30}


def own_direction(kind: str, slot: str, index: int) -> float:
    """A fixed standard normal number for one phrase, the same on every machine."""
    return random.Random(f"{kind}/{slot}/{index}").gauss(0.0, 1.0)


def log_weights(slot: str, writer: str, context: str = "c0") -> list[float]:
    """Log-weights of a slot's phrases for ``writer`` ("teacher" or "student") under a context such as ``eval+``."""
    out = []
    for index, (_, base, deliberation) in enumerate(SLOTS[slot]):
        weight = base
        if writer == "student":
            weight += STUDENT_SHIFT * deliberation + 0.15 * own_direction("student", slot, index)
        if context != "c0":
            named = Context.named(context)
            group, sign = named.group, 1.0 if named.polarity == "+" else -1.0
            weight += COMMON[group] * (deliberation + 0.3 * own_direction(group, slot, index))
            weight += sign * POLARITY[group] * own_direction(f"{group} polarity", slot, index)
        out.append(weight)
    return out


class Writer:
    """Draws responses in the style of the teacher or the student."""

    def __init__(self, writer: str, contexts: Sequence[str] = ("c0",)) -> None:
        self.weights = {
            (slot, context): [math.exp(w) for w in log_weights(slot, writer, context)]
            for slot in SLOTS
            for context in contexts
        }

    def phrase(self, rng: random.Random, slot: str, context: str) -> str:
        """One phrase of a slot."""
        index = rng.choices(range(len(SLOTS[slot])), self.weights[slot, context])[0]
        return SLOTS[slot][index][0]

    def response(self, rng: random.Random, problem: Problem, context: str = "c0") -> str:
        """A correct response to ``problem``, without the end-of-turn token."""
        parts = [self.phrase(rng, "opener", context)]
        for step in problem.equations():
            parts.append(f"{self.phrase(rng, 'connector', context)} {step}.")
            parts.append(self.phrase(rng, "remark", context))
        parts.append(self.phrase(rng, "closer", context))
        final = self.phrase(rng, "final", context)
        thought = " ".join(part for part in parts if part)
        return f"<think>\n{thought}\n</think>\n\n{final} \\boxed{{{problem.answer}}}."
