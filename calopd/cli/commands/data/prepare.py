"""Clean a problem set: a Parquet, JSONL or hub data set becomes one JSONL, and the changes are counted."""

import argparse
import time
from pathlib import Path

HELP = "convert a Parquet, JSONL or hub data set to one clean JSONL"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="file, or owner/name of a data set on the hub")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the JSONL to write")


def run(arguments: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    from calopd.data.prepare import prepare

    start = time.monotonic()
    account = prepare(arguments.source, arguments.out)
    table = Table(title=f"{arguments.source} → {arguments.out}", title_justify="left", box=None)
    table.add_column("count", justify="right")
    table.add_column("rows")
    for count, meaning in (
        (account.rows, "read"),
        (account.wrappers_stripped, "fixed wrapper removed"),
        (account.without_wrapper, "without a wrapper"),
        (account.half_wrapped, "with one end of the wrapper only, left unchanged"),
        (account.repaired, "form feed repaired to \\f"),
        (account.empty, "without problem or answer, dropped"),
        (account.duplicates, "duplicates of an earlier text, dropped"),
        (account.conflicting_problems, "problems whose copies have different answers, dropped"),
        (account.problems, "problems written"),
        (account.with_solution, "of them with a solution"),
    ):
        table.add_row(f"{count:,}", meaning)
    console = Console(soft_wrap=True)
    console.print(table)
    for conflict in account.conflicts:
        console.print(f"conflict: {conflict}", highlight=False, markup=False)
    console.print(f"{time.monotonic() - start:.1f} s", highlight=False)
