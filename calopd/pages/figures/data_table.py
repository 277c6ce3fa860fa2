"""A table with a readable and an exact form."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape


@dataclass(frozen=True, slots=True)
class TableRow:
    cells: Sequence[str]
    bold: frozenset[int] = frozenset()
    """Places of the cells that stand out."""
    group: str = ""
    """Heading above this row; empty = none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    key: str
    """Name of the exported files."""
    title: str
    note: str
    header: Sequence[str]
    rows: list[TableRow] = field(default_factory=list)
    csv_header: list[object] = field(default_factory=list)
    csv_rows: list[list[object]] = field(default_factory=list)
    """The numbers at full precision."""

    def html(self, heading: str = "h3") -> str:
        """The table below its title; `heading` is the tag of the title, empty = the title stands above already."""
        title = f"<{heading}>{escape(self.title)}</{heading}>" if heading else ""
        head = "".join(f"<th>{escape(cell)}</th>" for cell in self.header)
        body = ""
        for row in self.rows:
            if row.group:
                body += f'<tr class="strong"><th colspan="{len(self.header)}">{escape(row.group)}</th></tr>'
            first, *rest = (
                f"<b>{escape(cell)}</b>" if place in row.bold else escape(cell) for place, cell in enumerate(row.cells)
            )
            body += f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>"
        return (
            f'{title}<p class="hint">{escape(self.note)}</p><div class="wide">'
            f'<table class="results"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>\n'
        )
