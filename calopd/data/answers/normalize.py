"""Normalisation of equivalent LaTeX to one spelling. Single spaces stay: `1 1/2` and `1, 234` need them."""

import re
import unicodedata

_SYMBOLS = {
    "−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "÷": "/", "π": "\\pi ", "∞": "\\infty ", "°": "^\\circ ",
    "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "±": "\\pm ",
    "→": "\\to ", "⇒": "\\Rightarrow ",
    "∅": "\\emptyset ", "²": "^2", "³": "^3", "½": "\\frac{1}{2}", "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}",
    "⅓": "\\frac{1}{3}",
    "⅔": "\\frac{2}{3}", "“": "", "”": "", "’": "'",
}  # fmt: skip
_MONEY = {"\\$": "dollars", "€": "euros", "£": "pounds"}
_SIZES = "tiny|small|normalsize|[lL]arge|LARGE|[hH]uge"
_SYMBOL = re.compile("|".join(_SYMBOLS))

_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:thin|med|thick)space(?![A-Za-z]) ?", r"\\,"),
        (r"\\(?:text|mathord|mathpunct)\s*\{,( ?)\}", r",\1"),
        (r"(?<=\d),(?:\\[,;: ]|~) ?(?=\d{3}(?!\d))", ","),  # 12,\;345 is a number or a list, as 12,345 is
        (r"(?<=\d)(?:\{,\}|,\\! ?|\\[,!;: ] ?|~)(?=\d{3}(?!\d))", ""),  # thousands: 1{,}234, 1,\!234 and 1\,234
        (rf"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits|mathstrut|{_SIZES})(?![A-Za-z])|\\!", ""),
        (r"\\color\s*\{[^{}]*\}", ""),
        (r"(?<!\\)\\(?:quad|qquad|,|;|:| )|~|&nbsp;", " "),
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
        (r",?\s*\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<=[\s\d})\]]),?\s+(?:and|or)\s+", ", "),
        (r"^\\text\{[^{}]*?(?:\bis|:|=)\s*\}\s*(?=\S)", ""),  # \text{The answer is } 42
        (r"(?<!\\)\\[()\[\]]", " "),
        (r"\\text\s*\{\s*([a-fi-kn-rt-z])\s*\}", r" \1"),  # an upright i or x is a number or a variable; m is a unit
        (r"(\.\d+)\s*\\l?dots(?![A-Za-z])", r"\1"),
        (r"(?<![.\d])(\d+)\s*\.{3}$", r"\1\\ldots"),  # 5... is not 5, but 0.333... is 0.333
        (r"\s+", " "),
    )
)

_FONT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|up|normal)|emph|mbox|operatorname"
    r"|(?P<math>math(?:rm|bf|it|sf|tt)|boldsymbol|bm|pmb|bf|rm|underline"
    rf"|(?:text)?color\s*\{{[^{{}}]*\}}|{_SIZES}))\s*\{{"
)
_WORDS = re.compile(r"[A-Za-z .,'/-]*")


def _without_fonts(answer: str) -> str:
    """Fonts of words become \\text{}; a font around mathematics, such as \\mathbf{\\frac{1}{2}}, is dropped."""
    start = 0
    while font := _FONT.search(answer, start):
        start = end = font.end()
        depth = 1
        while end < len(answer) and depth:
            depth += (answer[end] == "{") - (answer[end] == "}")
            end += 1
        inner = answer[start : end - 1] if depth == 0 else answer[start:]
        is_mathematics = not _WORDS.fullmatch(inner) if font["math"] else "\\" in inner
        before, after = answer[: font.start()], answer[end:]
        if is_mathematics and depth == 0:
            answer, start = f"{before}{inner}{after}", font.start()
        else:
            answer, start = f"{before}\\text{{{answer[start:]}", font.start() + len("\\text{")
    return answer


def normalise(answer: str) -> str:
    """The answer without typesetting: delimiters, sizes, spacing, fonts and synonyms of symbols."""
    answer = unicodedata.normalize("NFKC", _SYMBOL.sub(lambda match: _SYMBOLS[match[0]], answer))
    # A currency sign moves behind the number, like any unit; the other dollar signs are delimiters.
    if money := re.match(r"\s*(-?)\s*(\\\$|€|£)", answer):
        answer = f"{money[1]}{answer[money.end() :]}\\text{{{_MONEY[money[2]]}}}"
    answer = _without_fonts(answer.replace("\\$", "").replace("$", ""))
    for pattern, replacement in _RULES:
        answer = pattern.sub(replacement, answer)
    return answer.strip().removesuffix("\\").rstrip(" .")


def plain(answer: str) -> str:
    """The text for literal comparison: no fonts and no spaces; words are case-folded."""
    answer = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", answer)
    answer = re.sub(r"\s+(?!\d)|(?<!\d)\s+", "", answer)
    return answer.casefold() if answer.isalpha() else answer
