"""Contexts: prompts that only the teacher sees. Their texts, their negatives, and the chat turns they become."""

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from calopd.core.arithmetic import value
from calopd.core.errors import ConfigError

if TYPE_CHECKING:  # names and texts must not cost the import of torch
    from calopd.core.types import Problem

SYSTEM_PROMPT = (
    "You are a helpful math assistant. Please solve the math problem.\n\n"
    "You must enclose your final answer exactly within \\boxed{}."
)
BASE = "c0"
"""The name of the bare problem, which is also the student's prompt."""
FIELDS = ("problem", "answer", "solution")
Polarity = Literal["+", "-", ""]


@dataclass(frozen=True, slots=True)
class Context:
    """An intervention: a text that is added to the problem. c0 is the context without one."""

    name: str
    group: str
    """The contexts of a group contrast with each other: `eval` has `eval+` and `eval-`."""
    polarity: Polarity
    """`-` shows a wrong answer for {answer} and an unrelated solution for {solution}."""
    text: str
    """May contain {problem}, {answer} and {solution}."""

    @property
    def needs(self) -> frozenset[str]:
        """Fields of the problem that the text shows."""
        return frozenset(re.findall(r"\{(\w+)\}", self.text))

    @property
    def privileged(self) -> bool:
        """Whether the teacher learns something about the solution."""
        return bool(self.needs & {"answer", "solution"})

    def fill(self, values: Mapping[str, str]) -> str:
        """The text with its fields filled in."""
        return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], self.text)

    @classmethod
    def named(cls, name: str, text: str = "") -> "Context":
        """A context of the user or of a recorded study; `hint+` is the positive context of the group `hint`."""
        if name == BASE or not re.fullmatch(r"[A-Za-z0-9_]+[+-]?", name):
            raise ConfigError(f"context {name!r}: a name is letters, digits and _, then + or - for the two of a group")
        polarity: Polarity = "+" if name[-1] == "+" else "-" if name[-1] == "-" else ""
        context = cls(name, name.removesuffix(polarity), polarity, text)
        if unknown := context.needs - set(FIELDS):
            raise ConfigError(
                f"context {name!r}: unknown field {{{min(unknown)}}}; there are {{problem}}, {{answer}}, {{solution}}"
            )
        return context


def _pair(group: str, positive: str, negative: str) -> list[Context]:
    return [Context(f"{group}+", group, "+", positive), Context(f"{group}-", group, "-", negative)]


_ANSWER = (
    "A verified ground-truth answer is provided as a reliable reference: {answer}. "
    "Use it to guide your reasoning while providing a complete and logically coherent solution."
)
_SOLUTION = (
    "A reference solution is provided as additional guidance: {solution}. "
    "Use it while independently providing a complete and logically coherent solution."
)

CONTEXTS: dict[str, Context] = {
    context.name: context
    for context in (
        *_pair(
            "inst",
            "Please reason through the problem carefully and thoroughly. "
            "Verify intermediate steps and provide a complete, rigorous solution.",
            "Please solve the problem quickly and directly. "
            "Avoid unnecessary elaboration or extensive verification and reach the final answer efficiently.",
        ),
        *_pair(
            "eval",
            "A gold-standard verifier has judged that the following solution reaches the correct final answer. "
            "The reasoning is rigorous, coherent, and mathematically sound.",
            "A gold-standard verifier has judged that the following solution does not reach the correct final answer. "
            "The reasoning is flawed, incoherent, and mathematically unreliable.",
        ),
        *_pair("ans", _ANSWER, _ANSWER),
        *_pair("sol", _SOLUTION, _SOLUTION),
    )
}
"""The paper's eight contexts beside c0, by name. A new group is one more entry."""


def groups(contexts: Mapping[str, Context] = CONTEXTS) -> dict[str, tuple[str, ...]]:
    """Names of the contexts of every group, the positive one first."""
    found: dict[str, list[Context]] = {}
    for context in contexts.values():
        found.setdefault(context.group, []).append(context)
    return {
        group: tuple(context.name for context in sorted(members, key=lambda c: "+-".find(c.polarity)))
        for group, members in found.items()
    }


def probe_names(entries: Iterable[str], contexts: Mapping[str, Context] = CONTEXTS) -> tuple[str, ...]:
    """Contexts named by groups (`eval` = `eval+` and `eval-`) or by their own names, each once."""
    known = groups(contexts)
    names: list[str] = []
    for entry in entries:
        if entry not in contexts and entry not in known:
            raise ConfigError(f"unknown probe group {entry!r}; the groups are {', '.join(sorted(known))}")
        names += [entry] if entry in contexts else known[entry]
    return tuple(dict.fromkeys(names))


def wrong_answer(answer: str, problem_id: str, seed: int) -> str:
    """Another answer with the same number of digits, drawn from the seed and the problem's id.

    It never has the same value (2/4 for 1/2, 4^2 for 2^4, 2,1 for 1,2) or a denominator of zero. An answer without
    digits becomes `(answer)+1`.
    """
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
        wrong = "".join(out)
        if _values(wrong) is not None and not _same_value(answer, wrong) and not _loses_a_term(answer, wrong):
            return wrong


_NUMBER = r"\d+(?:\.\d+)?"
_BRACED = rf"\s*(?:\{{\s*([+-]?{_NUMBER})\s*\}}|(\d))"
_TERM = rf"(?:\(\s*([+-]?{_NUMBER})\s*\)|({_NUMBER}))"
_FRACTION = re.compile(rf"\\[cdt]?frac{_BRACED}{_BRACED}|{_TERM}\s*[/:]\s*{_TERM}")


def _same_value(answer: str, wrong: str) -> bool:
    """Whether both are the same number, the same text but for the terms of fractions, or a list in another order."""
    if _values(answer) == _values(wrong) or ((number := value(answer)) is not None and number == value(wrong)):
        return True
    return not re.search(r"[(\[]", answer) and _elements(answer) == _elements(wrong)


def _elements(answer: str) -> list[str]:
    """The parts of a set or list, sorted."""
    inner = re.sub(r"\\(?:left|right)(?![A-Za-z])|\\[{}]|\s", "", answer)
    return sorted(re.split("[,;]", inner))


def _loses_a_term(answer: str, wrong: str) -> bool:
    """Whether a number became zero where a division is written in another way, so that it may be the denominator."""
    if not re.search(r"frac|[/:]", _FRACTION.sub("", answer)):
        return False
    numbers = zip(re.findall(r"\d+", answer), re.findall(r"\d+", wrong), strict=True)
    return any(int(given) and not int(drawn) for given, drawn in numbers)


def _values(answer: str) -> list[Fraction | str] | None:
    """The answer with its fractions and ratios as numbers; None if a denominator is zero."""
    parts: list[Fraction | str] = []
    start = 0
    for match in _FRACTION.finditer(answer):
        top, bottom = (Fraction(digits) for digits in match.groups() if digits is not None)
        if bottom == 0:
            return None
        parts += [answer[start : match.start()], Fraction(top, bottom)]
        start = match.end()
    return [*parts, answer[start:]]


def unrelated_solution(
    problem: "Problem", others: "Sequence[Problem]", length: Callable[[str], int], seed: int
) -> tuple[str, bool]:
    """The solution of another problem (other text, other answer) of nearly the same tokenized length.

    Drawn among those whose length differs by less than 10 %. If there is none: the nearest in length, and False.
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
    """The problem, a blank line and the intervention; with `before`, the intervention first."""
    if not intervention:
        return problem.problem
    parts = (intervention, problem.problem) if before else (problem.problem, intervention)
    return "\n\n".join(parts)


def messages(problem: "Problem", intervention: str = "", *, before: bool = False) -> list[dict[str, str]]:
    """The chat turns of a context; the system turn is the same in all contexts and for the student."""
    return [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": user_turn(problem, intervention, before=before)},
    ]
