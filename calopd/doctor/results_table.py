"""Results of the checks: a table in a terminal, plain lines elsewhere."""

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calopd.doctor.checks import Result
from calopd.doctor.outcome import Outcome, Verdict

STYLE = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.NOT_CHECKED: "yellow"}
PLAIN_WIDTH = 100


def summary(results: Sequence[Result]) -> str:
    counts = {verdict: sum(result.outcome.verdict is verdict for result in results) for verdict in Verdict}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def show(console: Console, results: Sequence[Result]) -> None:
    """Print all results, then the longer texts, then the counts."""
    if console.is_terminal:
        console.print(_table(results))
    else:
        for result in results:
            console.print("\n".join(plain_lines(result)), highlight=False, markup=False, soft_wrap=True)
    for result in results:
        if result.outcome.detail:
            console.print(f"\n{result.name}:", highlight=False, markup=False)
            console.print(textwrap.indent(result.outcome.detail, "    "), highlight=False, markup=False, soft_wrap=True)
    console.print(f"\n{summary(results)}", highlight=False)


def _table(results: Sequence[Result]) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 1), expand=False)
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("found, and what to do", overflow="fold")
    for names, outcome in _rows(results):
        found = Text(outcome.message)
        if len(names) > 1:
            found.append(f": {', '.join(names)}")
        if outcome.advice:
            found.append(f"\n→ {outcome.advice}", style="bold" if outcome.verdict is Verdict.FAILED else "dim")
        check = names[0] if len(names) == 1 else f"{len(names)} checks"
        table.add_row(check, Text(str(outcome.verdict), style=STYLE[outcome.verdict]), found)
    return table


def _rows(results: Sequence[Result]) -> list[tuple[list[str], Outcome]]:
    """The checks of each row: those that were not made for one reason share a row."""
    rows: list[tuple[list[str], Outcome]] = []
    for result in results:
        same = [names for names, outcome in rows if outcome == result.outcome]
        if same and result.outcome.verdict is Verdict.NOT_CHECKED:
            same[0].append(result.name)
        else:
            rows.append(([result.name], result.outcome))
    return rows


def plain_lines(result: Result) -> list[str]:
    """One result as lines: `verdict  check: message`, then the advice."""
    outcome, indent = result.outcome, " " * 13
    text = f"{outcome.verdict:<12} {result.name}: {outcome.message}"
    lines = textwrap.wrap(text, PLAIN_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    if outcome.advice:
        lines += textwrap.wrap(
            f"-> {outcome.advice}", PLAIN_WIDTH, initial_indent=indent, subsequent_indent=indent + "   ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return lines
