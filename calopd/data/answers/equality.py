"""Equality of two answers: as text, as numbers, part by part. math-verify decides the remaining cases."""

import re
from collections.abc import Callable
from functools import lru_cache, partial

from calopd.data.answers.judge import OverLimit, judge
from calopd.data.answers.normalize import normalise, plain
from calopd.data.answers.quantity import key, qualifier, quantity, same_quantity, same_unit, split_unit, unwrapped

MAX_LENGTH = 2_000
"""Longer answers are compared as plain text only."""
MAX_PARTS = 64
MAX_QUESTIONS = 32
"""Calls to math-verify per answer: bounds the pairwise comparison of two long lists."""

_EQUALS = re.compile(r"(?<![<>!:=])=(?!=)")
_NAME = re.compile(
    r"\\?[A-Za-z]+(?: ?_ ?(?:\{[^{}]*\}|\w))?'?(?: ?\([^()]*\))?|\([a-z](?: ?, ?[a-z])+\)"
    r"|\\(?:angle|overline|triangle) ?[{}A-Z ]+"
)
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|in|cup|cap|setminus|begin|pm|mp|lt|gt|mathbb)(?![A-Za-z])")
_STATEMENT = re.compile(
    r"[<>]|\\n?(?:le|ge|ne|lt|gt|ll|gg|mid|parallel|perp|in|ni|(?:sub|sup)set(?:eq)?)(?![A-Za-z])|^[^|]*\|[^|]*$"
    r"|(?<=.)\\(?:to|implies|iff|mapsto|(?i:(?:long)?(?:left)?(?:right)?arrow))(?![A-Za-z])"
)
"""`\\le 5`, `7 \\to 8` and `2 \\mid 3` are no numbers; a leading arrow means `therefore`."""
_VARIABLE = re.compile(r"[+-]?[\d.]+ ?[A-Za-z]")
"""`5m` is not 5: outside \\text{}, a single letter is a variable, not a unit."""
_SYMBOLS = (
    "alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|(?:var)?theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|upsilon|"
    "(?:var)?phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Upsilon|Phi|Psi|Omega|aleph|ell"
)
_NO_VARIABLE = re.compile(
    rf"\\text ?\{{[^{{}}]*\}}|\\(?!(?:{_SYMBOLS})(?![A-Za-z]))[A-Za-z]+"
    r"|(?<![A-Za-z])(?:sqrt|pi|sin|cos|tan|cot|sec|csc|log|ln|exp|e|i)(?![A-Za-z])"
)
"""Words and letters that a number may contain."""
_LABEL = re.compile(r"\(?([A-J])\s*[).:]\s*(.*)", re.DOTALL)
_OPEN, _SHUT = "([{", ")]}"

Ask = Callable[[str, str], bool]
"""(gold, given) -> whether math-verify considers them equal."""


@lru_cache(maxsize=4_096)
def equal(gold: str, given: str) -> bool:
    """Whether a given answer equals the gold answer; False if the limits are reached first."""
    if len(gold) > MAX_LENGTH or len(given) > MAX_LENGTH:
        return gold.strip() == given.strip()
    asked = 0

    def ask(gold: str, given: str) -> bool:
        nonlocal asked
        asked += 1
        if asked > MAX_QUESTIONS:
            raise OverLimit
        return judge.equal(gold, given)

    try:
        return _equal(ask, normalise(gold), normalise(given))
    except (OverLimit, RecursionError):
        return False


def answer_key(given: str) -> str:
    """Key for majority votes: identical for answers that are the same number or the same normalised text."""
    return given.strip() if len(given) > MAX_LENGTH else key(normalise(given))


def _equal(ask: Ask, gold: str, given: str) -> bool:
    if plain(gold) == plain(given):
        return True
    if not plain(gold) or not plain(given):
        return False
    numbers = quantity(gold), quantity(given)
    if numbers[0] is not None and numbers[1] is not None:
        if same_quantity(numbers[0], numbers[1]):
            return True
        if "," not in gold + given:
            return False
    parts = _parts(gold), _parts(given)
    if parts[0] is not None and parts[1] is not None:
        return _same_parts(partial(_equal, ask), *parts[0], *parts[1])
    if (parts[1] is None or "=" not in given) and (sides := _right_sides(gold, given)) is not None:
        return _equal(ask, *sides)
    for number, part, other in zip(numbers, parts, (given, gold), strict=True):
        if part is not None and len(part[1]) == 1:
            return _equal(ask, *((part[1][0], other) if other is given else (other, part[1][0])))
        if part is not None and not _RELATION.search(other):
            return False
        if number is not None and _VARIABLE.fullmatch(other):
            return False
    if (verdict := _same_words(ask, gold, given)) is not None:
        return verdict
    if qualifier(gold) != qualifier(given):
        return False
    (gold, gold_unit), (given, given_unit) = split_unit(gold, bare=False), split_unit(given, bare=False)
    # math-verify takes `n \\equiv 2 \\pmod{4}` for 2: an expression with a variable or a relation equals no number.
    if any(quantity(one) is not None and _is_no_number(other) for one, other in ((gold, given), (given, gold))):
        return False
    return same_unit(gold_unit, given_unit) and ask(gold, given)


def _is_no_number(text: str) -> bool:
    """Whether the text has a variable or a relation."""
    return _STATEMENT.search(text) is not None or re.search(r"[A-Za-z]", _NO_VARIABLE.sub(" ", text)) is not None


def _parts(text: str) -> tuple[str, list[str]] | None:
    """Brackets ('' = a bare list) and parts of a tuple, set, interval or list; None for anything else."""
    text = text.strip()
    inner, brackets = text, ""
    for start, end in (("\\{", "\\}"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")")):
        if text.startswith(start) and text.endswith(end) and _encloses(text):
            inner, brackets = text[len(start) : -len(end)], start + end
            break
    parts, depth, begin = [], 0, 0
    for place, char in enumerate(inner):
        depth += (char in _OPEN) - (char in _SHUT)
        if char in ",;" and depth == 0:
            parts.append(inner[begin:place].strip())
            begin = place + 1
    parts.append(inner[begin:].strip())
    if (len(parts) == 1 and brackets != "\\{\\}") or len(parts) > MAX_PARTS or not all(parts):
        return None
    return brackets, parts


def _encloses(text: str) -> bool:
    """Whether the first bracket closes at the end of the text."""
    depth = 0
    for place, char in enumerate(text):
        depth += (char in _OPEN) - (char in _SHUT)
        if depth == 0 and char in _SHUT:
            return place == len(text) - 1
    return False


def _same_parts(same: Ask, gold_brackets: str, gold: list[str], brackets: str, given: list[str]) -> bool:
    """Compare parts: tuples and intervals in order and with the same brackets, sets and bare lists in any order."""
    loose = ("", "\\{\\}")
    if gold_brackets in loose and brackets in loose:
        if gold_brackets or brackets:  # a set has an element once, a list as often as it is there
            gold, given = list(dict.fromkeys(gold)), list(dict.fromkeys(given))
        left = given.copy()
        return len(gold) == len(left) and all(_take(partial(same, part), left) for part in gold)
    if gold_brackets != brackets and {gold_brackets, brackets} != {"", "()"}:
        return False
    return len(gold) == len(given) and all(map(same, gold, given))


def _take(matches: Callable[[str], bool], parts: list[str]) -> bool:
    """Remove the first part that matches; False if none does."""
    found = next((place for place, part in enumerate(parts) if matches(part)), None)
    if found is not None:
        del parts[found]
    return found is not None


def _right_sides(gold: str, given: str) -> tuple[str, str] | None:
    """Right sides to compare (`x = 5` matches `5`) if gold is not an equation or its left side is only a name."""
    golds, givens = _EQUALS.split(gold), _EQUALS.split(given)
    if len(golds) == 1 and len(givens) > 1:
        return gold, givens[-1].strip()
    if len(golds) > 1 and _NAME.fullmatch(golds[0].strip()):
        if len(givens) == 1:
            return golds[-1].strip(), given
        if plain(golds[0]) == plain(givens[0]):
            return golds[-1].strip(), givens[-1].strip()
    return None


def _same_words(ask: Ask, gold: str, given: str) -> bool | None:
    """Compare choice labels and words; None if the answers are neither."""
    if match := _LABEL.fullmatch(unwrapped(given).replace("\\text{", "").replace("}", "")):
        label, rest = match[1], match[2].strip()
        if re.fullmatch(r"\(?[A-J]\)?", plain(gold), re.IGNORECASE):
            return plain(gold).strip("()").upper() == label
        if rest:
            return _equal(ask, gold, rest)
    words = [unwrapped(text) if text.startswith("\\text") else "" for text in (gold, given)]
    if any(len(word) > 1 and re.fullmatch(r"[A-Za-z' -]+", word) for word in words):
        return plain(unwrapped(gold)) == plain(unwrapped(given))
    bare = [plain(unwrapped(text)) for text in (gold, given)]
    # A product of variables is short and repeats none of them: `abc` is algebra, `even` is a word.
    if all(text.isalpha() for text in bare) and any(len(t) > 4 or len(set(t)) < len(t) for t in bare):
        return bare[0] == bare[1]
    return None
