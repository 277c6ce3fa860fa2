"""Write the wrong answer and the unrelated solution of every problem, as a run with this seed shows them."""

import argparse
from pathlib import Path

from calopd.cli.argument_types import seed

HELP = "write the wrong answer and the unrelated solution of every problem"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="JSONL of problems")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the JSONL to write")
    parser.add_argument(
        "--tokenizer", required=True, help="model directory or hub id; lengths are counted in its tokens"
    )
    parser.add_argument("--seed", type=seed, default=0, help="seed of the run (default: %(default)s)")


def run(arguments: argparse.Namespace) -> None:
    from calopd.core.contexts import unrelated_solution, wrong_answer
    from calopd.data.problems import check_not_source, load_problems
    from calopd.models.model_files import check_exists
    from calopd.models.tokenizers import load_tokenizer
    from calopd.rundir.files import write_lines

    check_not_source(arguments.out, arguments.source)
    problems = load_problems(arguments.source)
    check_exists("--tokenizer", arguments.tokenizer)
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
    print(f"{len(problems)} problems; for {far} no other solution has a length within 10 %: the nearest one is used")
