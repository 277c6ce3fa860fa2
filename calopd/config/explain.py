"""Errors of pydantic in plain words."""

from typing import Any

EXPECTED = {
    "greater_than": "expected a number above {gt:.10g}",
    "greater_than_equal": "expected {ge:.10g} or more",
    "less_than": "expected a number below {lt:.10g}",
    "less_than_equal": "expected {le:.10g} or less",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "finite_number": "expected a finite number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "string_type": "expected a text in quotes",
    "path_type": "expected a path in quotes",
    "string_too_short": "expected a text that is not empty",
    "literal_error": "expected {expected}",
    "tuple_type": 'expected a list such as ["a", "b"]',
    "list_type": 'expected a list such as ["a", "b"]',
    "dict_type": "expected a table of keys and values",
}


def expectation(error: Any) -> str:
    """The expected and the given value, for one entry of `ValidationError.errors()`."""
    pattern = EXPECTED.get(error["type"])
    expected = pattern.format(**error.get("ctx", {})) if pattern else str(error["msg"])
    return f"{expected} (given: {error['input']!r})"


def sentence(error: Any) -> str:
    """The key, what is wrong and what was given."""
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"unknown key {key}"
    if error["type"] == "missing":
        return f"{key} is missing"
    if key and error["type"] != "value_error":
        return f"{key}: {expectation(error)}"
    return str(error["msg"]).removeprefix("Value error, ")
