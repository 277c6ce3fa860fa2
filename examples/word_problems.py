"""Word problems of two or three additions and subtractions, and their worked solutions.

Intermediate values are within 1..99, the start within 10..89 and operands within 2..9, so that a model with less than
one million parameters can learn to solve the problems.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

NAMES = ("Ana", "Ben", "Carl", "Dora", "Eva", "Finn", "Gina", "Hugo", "Iris", "Jon", "Kim", "Leo", "Mia", "Nora")
ITEMS = ("apples", "books", "cards", "coins", "marbles", "pears", "pens", "shells", "stamps", "stones")
OPENINGS = ("{name} has {value} {item}.", "{name} owns {value} {item}.", "{name} starts with {value} {item}.")
GAINS = (
    "{name} buys {n} more.",
    "{name} finds {n} more.",
    "A friend gives {name} {n} more.",
    "{name} then wins {n}.",
    "{name} gets {n} from a box.",
)
LOSSES = (
    "{name} sells {n} of them.",
    "{name} loses {n} of them.",
    "{name} gives {n} to a friend.",
    "{name} then drops {n}.",
    "{name} puts {n} in a box.",
)
QUESTIONS = (
    "How many {item} does {name} have now?",
    "How many {item} are left with {name}?",
    "What is the number of {item} {name} has at the end?",
)


@dataclass(frozen=True)
class Problem:
    """One problem: its text, the start value and the signed operands in order."""

    text: str
    start: int
    operands: tuple[int, ...]

    @property
    def answer(self) -> int:
        """The value after the last step."""
        return self.start + sum(self.operands)

    def equations(self) -> list[str]:
        """The steps as equations, e.g. ``76+9=85``."""
        value, out = self.start, []
        for operand in self.operands:
            out.append(equation(value, operand))
            value += operand
        return out

    def solution(self) -> str:
        """The worked solution in plain words, ending with the boxed answer."""
        words = [f"Start with {self.start}."]
        for operand, step in zip(self.operands, self.equations(), strict=True):
            words.append(f"{'Add' if operand > 0 else 'Take away'} {abs(operand)}: {step}.")
        return " ".join([*words, f"The answer is \\boxed{{{self.answer}}}"])


def equation(value: int, operand: int) -> str:
    """``value`` plus a signed ``operand``, written out with the result."""
    return f"{value}{'+' if operand > 0 else '-'}{abs(operand)}={value + operand}"


def draw_operand(rng: random.Random, value: int) -> int:
    """A signed operand of size 2..9 that keeps the value within 1..99."""
    while True:
        operand = rng.choice((-1, 1)) * rng.randint(2, 9)
        if 1 <= value + operand <= 99:
            return operand


def draw_problem(rng: random.Random) -> Problem:
    """Draw one problem."""
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    start = value = rng.randint(10, 89)
    sentences = [rng.choice(OPENINGS).format(name=name, value=value, item=item)]
    operands = []
    for _ in range(rng.choice((2, 3))):
        operand = draw_operand(rng, value)
        value += operand
        operands.append(operand)
        sentences.append(rng.choice(GAINS if operand > 0 else LOSSES).format(name=name, n=abs(operand)))
    sentences.append(rng.choice(QUESTIONS).format(name=name, item=item))
    return Problem(" ".join(sentences), start, tuple(operands))


def problems(rng: random.Random, taken: set[str] | None = None) -> Iterator[Problem]:
    """An endless stream of problems with distinct texts that are not in ``taken``, which is extended."""
    seen = set() if taken is None else taken
    while True:
        problem = draw_problem(rng)
        if problem.text not in seen:
            seen.add(problem.text)
            yield problem


def drill(rng: random.Random, count: int) -> list[str]:
    """``count`` unrelated equations for arithmetic practice."""
    out = []
    for _ in range(count):
        value = rng.randint(1, 99)
        out.append(equation(value, draw_operand(rng, value)))
    return out
