"""The exact value of a number that is written as arithmetic, such as 2^4, 3+4 or \\binom{5}{2}."""

import ast
import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction

MAX_BITS = 10_000
"""Larger powers have no value: an answer may be 9^{9^{9}}."""

_PYTHON: tuple[tuple[str, str], ...] = (
    (r"\\(?:left|right)(?![A-Za-z])|\\[,;:! ]", ""),
    (r"\\[dt]?binom\s*(?:\{([^{}]*)\}\s*\{([^{}]*)\}|(\d)\s*(\d))", r"comb(\1\3,\2\4)"),
    (r"\\[cdt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"((\1)/(\2))"),
    (r"\\(?:cdot|times)(?![A-Za-z])", "*"),
    (r"\^\s*(\d|\{)", r"**\1"),
    (r"\{", "("),
    (r"\}", ")"),
    (r"\d*\.?\d+", r"('\g<0>')"),  # a string has all its digits, and `1 1/2` is no number here
)
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def value(text: str) -> Fraction | None:
    """The number that the text is, or None if it is anything else, as `x+1` and `2\\pi` are."""
    for pattern, replacement in _PYTHON:
        text = re.sub(pattern, replacement, text)
    if re.search(r"[^\d.,+*/()' -]", text.replace("comb(", "(")):
        return None
    try:
        return _evaluate(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _evaluate(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=str(digits)):
            return Fraction(digits)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            return _evaluate(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
        case ast.BinOp(op=ast.Pow()):
            base, exponent = _evaluate(node.left), _evaluate(node.right)
            if exponent.denominator == 1 and _bits(base) * abs(exponent) <= MAX_BITS:
                return base ** int(exponent)
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
        case ast.Call(func=ast.Name(id="comb"), args=[top, bottom]):
            n, k = _evaluate(top), _evaluate(bottom)
            if n.denominator == k.denominator == 1 and max(n, k) <= MAX_BITS:
                return Fraction(math.comb(int(n), int(k)))
    raise ValueError("no arithmetic")


def _bits(number: Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())
