"""Small pieces of Markdown for generated pages."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; line breaks in a cell become spaces and `|` is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(_cell(text) for text in line) + " |\n" for line in lines)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
