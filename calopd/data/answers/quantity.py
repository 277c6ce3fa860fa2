"""Numbers with an optional unit, parsed without algebra. They cover nearly every answer."""

import re
from dataclasses import dataclass
from fractions import Fraction

from calopd.data.answers.normalize import plain

PLACES = 6
"""A decimal with at least this many places also equals the number it rounds or truncates: 0.333333 equals 1/3."""

_NAMES = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
    "inch": "in", "foot": "ft feet", "yard": "yd", "mile": "mi", "mg": "milligram", "g": "gram", "kg": "kilogram",
    "pound": "lb", "ounce": "oz", "second": "s sec", "minute": "min", "hour": "h hr", "day": "", "week": "",
    "month": "", "year": "yr", "dollar": "usd", "cent": "", "euro": "eur", "liter": "litre l",
    "ml": "milliliter millilitre",
    "degree": "deg", "radian": "rad", "mph": "", "percent": "",
}  # fmt: skip
_UNITS = {
    name: unit for unit, names in _NAMES.items() for word in (unit, *names.split()) for name in (word, word + "s")
}
_POWERS = {"square": "2", "sq": "2", "cubic": "3"}

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_FORMS = tuple(
    re.compile(form)
    for form in (
        rf"(?P<decimal>{_NUMBER})(?:[eE](?P<exponent>[+-]?\d{{1,3}}))?",
        rf"(?P<decimal>{_NUMBER}) ?\\(?:times|cdot) ?10 ?\^ ?(?:\{{ ?(?P<exponent>[+-]?\d{{1,3}}) ?\}}|(?P<digit>\d))",
        r"(?P<whole>\d*)\.(?P<fixed>\d*)\\overline ?\{(?P<period>\d{1,50})\}",
        rf"(?:(?P<mixed>\d+) ?)?\\frac\{{ ?(?P<top>-?{_NUMBER}) ?\}} ?\{{ ?(?P<bottom>-?{_NUMBER}) ?\}}",
        rf"(?:(?P<mixed>\d+) )?(?P<top>{_NUMBER}) ?/ ?(?P<bottom>{_NUMBER})",
    )
)
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:(?:,\d{3})+|(?: \d{3})+)(?:\.\d+)?")
_TEXT_UNIT = re.compile(r" ?\\text ?\{(?P<words>[^{}]*)\}(?: ?\^ ?\{? ?(?P<power>[23]) ?\}?)?$")
_BARE_UNIT = re.compile(r"(?<=[\d}.]) ?(?P<words>[A-Za-z]{2,}(?: [A-Za-z]+)*)(?: ?\^ ?\{? ?(?P<power>[23]) ?\}?)?$")
_DEGREES = re.compile(r" ?\^ ?\\circ ?(?:\\text ?\{ ?[CF] ?\}|[CF])?$")
_PERCENT = re.compile(r" ?(?:\\?%|\\text ?\{ ?(?:\\?%|percent) ?\}|percent)$")
_BASE = re.compile(r"(?<=\d) ?_ ?(?:\{ ?(?:\\text\{)?(?P<base>\d{1,2}|[a-z]{3,})\}? ?\}?|(?P<digit>\d))$")
_TRAILING = re.compile(r"(?<=[\d})]) ?(?:[-+*/'=]+|\\(?:times|cdot|pm|mp))$|(?<=\d) ?(?:\\l?dots|\^ ?\{? ?[-+*] ?\}?)$")
_NO_UNITS = frozenset(("or", "not", "impossible", "false", "incorrect", "if", "unless", "least", "most"))
"""Words that no unit contains: `5 \\text{ or more}` and `5 \\text{ is impossible}` are not 5."""


@dataclass(frozen=True, slots=True)
class Quantity:
    value: Fraction
    unit: str
    """'' = none; a word that is not a known unit (`12 apples`) counts as none."""
    places: int | None
    """Decimal places, for a number written as a decimal."""


def split_unit(text: str, *, bare: bool = True) -> tuple[str, str]:
    """The text before the unit and the canonical unit; with `bare`, words outside \\text{} count as units too."""
    if match := _PERCENT.search(text):
        return text[: match.start()], "percent"
    if (match := _DEGREES.search(text)) and not re.search(r"\\(?:sin|cos|tan|cot|sec|csc|arc)", text):
        return text[: match.start()], "degree"
    if bare and (match := _BASE.search(text)):
        return text[: match.start()], "base " + (match["base"] or match["digit"])
    match = _TEXT_UNIT.search(text) or (_BARE_UNIT.search(text) if bare else None)
    if match is None or not match.start():
        return text, ""
    words = match["words"].replace(".", " ").casefold().split()
    if not _NO_UNITS.isdisjoint(words):
        return text, ""
    power = match["power"] or ""
    while words and words[0] in _POWERS:
        power = _POWERS[words.pop(0)]
    unit = _UNITS.get(" ".join(words), "")
    return text[: match.start()], unit + power if unit else ""


def qualifier(text: str) -> str:
    """The sign or words after a value that make another answer of it: `5+`, `5'`, `5 \\text{ or more}`; '' = none."""
    if match := _TRAILING.search(text):
        return match[0].strip()
    match = _TEXT_UNIT.search(text) or _BARE_UNIT.search(text)
    words = match["words"].casefold().split() if match and match.start() else []
    return "" if _NO_UNITS.isdisjoint(words) else " ".join(words)


def quantity(text: str) -> Quantity | None:
    """The number that a normalised answer represents, or None if it is not a number."""
    text, unit = split_unit(unwrapped(text))
    text = unwrapped(text)
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("+-").strip() if text[:1] in ("+", "-") and text[1:2] not in ("+", "-") else text
    if _THOUSANDS.fullmatch(text):
        text = re.sub(r"[, ]", "", text)
    for form in _FORMS:
        if match := form.fullmatch(text):
            try:
                value = _value(match.groupdict())
            except ZeroDivisionError:
                return None
            places = len(text.partition(".")[2]) if re.fullmatch(r"\d*\.\d+", text) else None
            return Quantity(sign * value, unit, places)
    return None


def _value(parts: dict[str, str | None]) -> Fraction:
    if decimal := parts.get("decimal"):
        return Fraction(decimal) * Fraction(10) ** int(parts.get("exponent") or parts.get("digit") or 0)
    if period := parts.get("period"):
        fixed = parts["fixed"] or ""
        head = Fraction(int((parts["whole"] or "") + fixed or 0), 10 ** len(fixed))
        return head + Fraction(int(period), 10 ** len(fixed) * (10 ** len(period) - 1))
    top, bottom = Fraction(parts["top"] or 0), Fraction(parts["bottom"] or 0)
    return Fraction(parts["mixed"] or 0) + top / bottom


def unwrapped(text: str) -> str:
    """The text without enclosing parentheses, braces or \\text{}."""
    text = text.strip()
    if match := re.fullmatch(r"\\text ?\{([^{}]*)\}", text):
        return match[1].strip()
    if match := re.fullmatch(r"\(([^(),]*)\)|\{([^{},]*)\}", text):
        return (match[1] or match[2] or "").strip()
    return text


def same_unit(one: str, other: str) -> bool:
    """Whether the units agree; a missing unit agrees with any unit."""
    return not (one and other) or one == other


def same_quantity(one: Quantity, other: Quantity) -> bool:
    if not same_unit(one.unit, other.unit):
        return False
    if _close(one.value, other.value, one, other):
        return True
    if "percent" in (one.unit, other.unit) and one.unit != other.unit:
        bare, percent = (one, other) if other.unit == "percent" else (other, one)
        return bare.value * 100 == percent.value
    return False


def _close(a: Fraction, b: Fraction, one: Quantity, other: Quantity) -> bool:
    if a == b:
        return True
    places = [q.places for q in (one, other) if q.places is not None]
    return len(places) == 1 and places[0] >= PLACES and abs(a - b) < Fraction(1, 10 ** places[0])


def key(text: str) -> str:
    """Identical for all spellings of a number; used to count votes."""
    number = quantity(text)
    return str(number.value) if number is not None else plain(text)
