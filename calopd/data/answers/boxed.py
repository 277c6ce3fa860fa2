"""Extraction of the boxed answer from a response."""

import re

_BRACES = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")


def last_boxed(text: str) -> str | None:
    """The content of the last balanced `\\boxed{...}`, or None. Linear time, also for repetitive responses."""
    opened: list[int] = []  # content start of each open brace; -1 for a brace without \boxed
    last: tuple[int, int] | None = None
    for brace in _BRACES.finditer(text):
        if brace[0].startswith("\\boxed"):
            opened.append(brace.end())
        elif brace[0] == "{":
            opened.append(-1)
        elif brace[0] == "}" and opened:
            start = opened.pop()
            if start >= 0 and (last is None or start > last[0]):
                last = (start, brace.start())
    return text[last[0] : last[1]] if last else None


def answered_after_think(response: str) -> bool:
    """Whether a boxed answer appears after `</think>`."""
    return last_boxed(response.rpartition("</think>")[2]) is not None if "</think>" in response else False
