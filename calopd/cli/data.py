"""`calopd data ...`: what the commands print and write."""

import argparse
import time

from rich.console import Console
from rich.table import Table


def prepare(arguments: argparse.Namespace) -> None:
    """Clean a problem set and print the account of it."""
    from calopd.data.prepare import prepare as prepare_file

    start = time.monotonic()
    account = prepare_file(arguments.source, arguments.out)
    table = Table(title=f"{arguments.source} → {arguments.out}", title_justify="left", box=None)
    for name, justify in (("count", "right"), ("what", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for count, what in (
        (account.rows, "rows read"),
        (account.wrappers_stripped, "fixed wrapper stripped"),
        (account.without_wrapper, "had no wrapper"),
        (account.half_wrapped, "had one end of the wrapper only, left as they are"),
        (account.repaired, "form feed repaired to \\f"),
        (account.empty, "without problem or answer, dropped"),
        (account.duplicates, "duplicates of a text seen before, dropped"),
        (account.conflicting_problems, "problems whose copies disagree on the answer, dropped"),
        (account.problems, "problems written"),
        (account.with_solution, "of them with a solution"),
    ):
        table.add_row(f"{count:,}", what)
    console = Console(soft_wrap=True)
    console.print(table)
    for conflict in account.conflicts:
        console.print(f"conflict: {conflict}", highlight=False, markup=False)
    console.print(f"{time.monotonic() - start:.1f} s", highlight=False)


def negatives(arguments: argparse.Namespace) -> None:
    """Write what `ans-` and `sol-` show for every problem; the same that the teacher is shown in a run of this seed."""
    from calopd.core.contexts import unrelated_solution, wrong_answer
    from calopd.data.problems import load_problems
    from calopd.models.tokenizers import load_tokenizer
    from calopd.rundir.files import write_lines

    problems = load_problems(arguments.source)
    tokenizer = load_tokenizer(arguments.tokenizer)
    lengths = {p.solution: len(tokenizer.encode(p.solution, add_special_tokens=False)) for p in problems}
    far = 0
    rows = []
    for problem in problems:
        row = {"id": problem.id, "wrong_answer": wrong_answer(problem.answer, problem.id, arguments.seed)}
        if problem.solution:
            row["unrelated_solution"], near = unrelated_solution(problem, problems, lengths.__getitem__, arguments.seed)
            far += not near
        rows.append(row)
    write_lines(arguments.out, rows)
    print(f"{len(problems)} problems; for {far} no other solution lay within 10 % of the length: the nearest was taken")
