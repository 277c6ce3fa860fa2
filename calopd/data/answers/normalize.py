"""Normalisation of equivalent LaTeX to one spelling. Single spaces stay: `1 1/2` and `1, 234` need them."""

import re
import unicodedata

_SYMBOLS = {
    "−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "÷": "/", "π": "\\pi ", "∞": "\\infty ", "°": "^\\circ ",
    "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "±": "\\pm ",
    "∅": "\\emptyset ", "²": "^2", "³": "^3", "½": "\\frac{1}{2}", "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}",
    "⅓": "\\frac{1}{3}",
    "⅔": "\\frac{2}{3}", "“": "", "”": "", "’": "'",
}  # fmt: skip
_MONEY = {"\\$": "dollars", "€": "euros", "£": "pounds"}
_SYMBOL = re.compile("|".join(_SYMBOLS))

_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=\d)(?:\{,\}|\\[,!;: ] ?|~)(?=\d{3}(?!\d))", ""),  # thousands: 1{,}234 and 1\,234
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|mathstrut)(?![A-Za-z])|\\!", ""),
        (r"(?<!\\)\\(?:quad|qquad|,|;|:| )|~|&nbsp;", " "),
        (r"\\(?:textbf|textit|textrm|textsf|mathrm|mathbf|mathit|mathsf|mbox|operatorname|bf|rm)\s*\{", r"\\text{"),
        (r"\\(?:dfrac|tfrac|cfrac)(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*\{([^{}]*)\}\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*\{([^{}]*)\}\s*\{", r"\\frac{\1}{"),
        (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
        (r"\\(?:le|leq|leqslant)(?![A-Za-z])", r"\\le "),
        (r"\\(?:ge|geq|geqslant)(?![A-Za-z])", r"\\ge "),
        (r"\\(?:ne|neq)(?![A-Za-z])", r"\\ne "),
        (r"\\(?:varnothing|emptyset)(?![A-Za-z])", r"\\emptyset "),
        (r"\\(?:degree|degrees)(?![A-Za-z])", r"^\\circ "),
        (r"\^\s*\{\s*\\circ\s*\}", r"^\\circ "),
        (r"\+\s*\\infty", r"\\infty"),
        (r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<=[\s\d}]),?\s+(?:and|or)\s+", ", "),
        (r"^\\text\{[^{}]*?(?:\bis|:|=)\s*\}\s*(?=\S)", ""),  # \text{The answer is } 42
        (r"(?<!\\)\\[()\[\]]", " "),
        (r"\s+", " "),
    )
)


def normalise(answer: str) -> str:
    """The answer without typesetting: delimiters, sizes, spacing, fonts and synonyms of symbols."""
    answer = unicodedata.normalize("NFKC", _SYMBOL.sub(lambda match: _SYMBOLS[match[0]], answer))
    # A currency sign moves behind the number, like any unit; the other dollar signs are delimiters.
    if money := re.match(r"\s*(-?)\s*(\\\$|€|£)", answer):
        answer = f"{money[1]}{answer[money.end() :]}\\text{{{_MONEY[money[2]]}}}"
    answer = answer.replace("\\$", "").replace("$", "")
    for pattern, replacement in _RULES:
        answer = pattern.sub(replacement, answer)
    return answer.strip().removesuffix("\\").rstrip(" .")


def plain(answer: str) -> str:
    """The text for literal comparison: no fonts and no spaces; words are case-folded."""
    answer = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", answer)
    answer = re.sub(r"\s+(?!\d)|(?<!\d)\s+", "", answer)
    return answer.casefold() if answer.isalpha() else answer
