"""Contexts: what the teacher alone sees. Interventions, negatives, and the prompts they become."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from calopd.core.errors import ConfigError

if TYPE_CHECKING:  # names and texts must not cost the import of torch
    from calopd.core.types import Problem

SYSTEM_PROMPT = (
    "You are a helpful math assistant. Please solve the math problem.\n\n"
    "You must enclose your final answer exactly within \\boxed{}."
)

_ANSWER = (
    "A verified ground-truth answer is provided as a reliable reference: {answer}. "
    "Use it to guide your reasoning while providing a complete and logically coherent solution."
)
_SOLUTION = (
    "A reference solution is provided as additional guidance: {solution}. "
    "Use it while independently providing a complete and logically coherent solution."
)

INTERVENTIONS: dict[str, str] = {
    "inst+": "Please reason through the problem carefully and thoroughly. "
    "Verify intermediate steps and provide a complete, rigorous solution.",
    "inst-": "Please solve the problem quickly and directly. "
    "Avoid unnecessary elaboration or extensive verification and reach the final answer efficiently.",
    "eval+": "A gold-standard verifier has judged that the following solution reaches the correct final answer. "
    "The reasoning is rigorous, coherent, and mathematically sound.",
    "eval-": "A gold-standard verifier has judged that the following solution does not reach the correct final answer. "
    "The reasoning is flawed, incoherent, and mathematically unreliable.",
    "ans+": _ANSWER,
    "ans-": _ANSWER,
    "sol+": _SOLUTION,
    "sol-": _SOLUTION,
}
"""Context name -> text. `ans-` and `sol-` are the text of `ans+` and `sol+` with a negative filled in."""

BASE = "c0"


FIELDS = ("problem", "answer", "solution")


def check_intervention(name: str, text: str) -> None:
    """Refuse a context of the user's own that names no known field."""
    if name == BASE or not re.fullmatch(r"[A-Za-z0-9_]+[+-]?", name):
        raise ConfigError(f"context {name!r}: a name is letters, digits and _, then + or - for the two of a group")
    unknown = set(re.findall(r"\{(\w+)\}", text)) - set(FIELDS)
    if unknown:
        raise ConfigError(
            f"context {name!r}: unknown field {{{min(unknown)}}}; there are {{problem}}, {{answer}}, {{solution}}"
        )


def group_probes(group: str, interventions: Mapping[str, str] = INTERVENTIONS) -> tuple[str, ...]:
    """The contexts of a group, `eval` -> (`eval+`, `eval-`); of a single context, itself."""
    if group in interventions:
        return (group,)
    names = tuple(name for name in interventions if name[-1] in "+-" and name[:-1] == group)
    if not names:
        groups = sorted({name.rstrip("+-") for name in interventions})
        raise ConfigError(f"unknown probe group {group!r}; the groups are {', '.join(groups)}")
    return names


def wrong_answer(answer: str, problem_id: str, seed: int) -> str:
    """Another answer with as many digits, drawn from the seed and the problem's id; `(answer)+1` without digits."""
    if not re.search(r"\d", answer):
        return f"({answer})+1"
    draw = random.Random(f"wrong-answer/{seed}/{problem_id}")
    while True:
        leading = True
        out = []
        for char in answer:
            if char.isdigit():
                out.append(str(draw.randint(1, 9) if leading and char != "0" else draw.randint(0, 9)))
                leading = False
            else:
                out.append(char)
        if (wrong := "".join(out)) != answer:
            return wrong


def unrelated_solution(
    problem: "Problem", others: "Sequence[Problem]", length: Callable[[str], int], seed: int
) -> tuple[str, bool]:
    """The solution of another problem (other text, other answer) of nearly the same tokenized length.

    Drawn among those that differ by less than 10 %; where there is none, the nearest, and False says so.
    """
    candidates = [p for p in others if p.solution and p.problem != problem.problem and p.answer != problem.answer]
    if not candidates:
        raise ConfigError(f"problem {problem.id}: no other problem with a solution to draw an unrelated one from")
    wanted = length(problem.solution)
    near = [p for p in candidates if abs(length(p.solution) - wanted) < 0.1 * wanted]
    if not near:
        return min(candidates, key=lambda p: (abs(length(p.solution) - wanted), p.id)).solution, False
    return random.Random(f"unrelated-solution/{seed}/{problem.id}").choice(near).solution, True


def user_turn(problem: "Problem", intervention: str = "", *, before: bool = False) -> str:
    """The problem; with an intervention, a blank line and its text (or the other way round)."""
    if not intervention:
        return problem.problem
    parts = (intervention, problem.problem) if before else (problem.problem, intervention)
    return "\n\n".join(parts)


def messages(problem: "Problem", intervention: str = "", *, before: bool = False) -> list[dict[str, str]]:
    """The chat turns of a context; the system turn is the same in all of them and for the student."""
    return [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": user_turn(problem, intervention, before=before)},
    ]
