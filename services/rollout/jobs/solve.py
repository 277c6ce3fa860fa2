"""`calopd data solve`: sample one solution per problem from a strong model and keep the correct ones.

Each attempt is saved when it is complete, so that an interrupted command can resume.
"""

import argparse
import contextlib
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

import psutil
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from calopd.cli.registry import find_command
from calopd.config.sections import RolloutSection
from calopd.config.sections.sampling import sampling_of
from calopd.core.types import Problem
from calopd.data.problems import load_problems, problem_seed
from calopd.local.entry_point import INTERRUPTED_EXIT, accept_interrupts, guarded
from calopd.local.replicated_job import attempt_files, attempts_file
from calopd.rundir.files import Journal, read_lines, write_lines

if TYPE_CHECKING:
    from services.rollout.jobs.endpoint import EndpointSampler
    from services.rollout.jobs.offline import OfflineSampler


def solve(arguments: argparse.Namespace) -> tuple[int, int]:
    """Attempt the remaining problems, then write those with a correct solution; return their number and the total.

    One of several replicas attempts only its part; the process that started them writes.
    """
    problems = load_problems(arguments.source)
    tried = {row["id"]: bool(row["correct"]) for file in attempt_files(arguments.out) for row in read_lines(file)}
    replica, replicas = (0, 1) if arguments.replica is None else (arguments.replica, arguments.replicas)
    # Split all problems, tried or not, so that the split does not depend on the progress of other replicas.
    remaining = [
        problem for number, problem in enumerate(problems) if number % replicas == replica and problem.id not in tried
    ]
    if remaining:
        journal = Journal(attempts_file(arguments.out, replica))
        _attempt(arguments, remaining, journal, earlier=[tried[p.id] for p in problems if p.id in tried])
        journal.close()
    rows = [row for file in attempt_files(arguments.out) for row in read_lines(file)]
    right = {row["id"]: row["solution"] for row in rows if row["correct"]}
    if arguments.replica is None:
        solved = [
            {"id": p.id, "problem": p.problem, "answer": p.answer, "solution": right[p.id]}
            for p in problems
            if p.id in right
        ]
        write_lines(arguments.out, solved)
    return len(right), len(problems)


def _sampler(arguments: argparse.Namespace) -> "OfflineSampler | EndpointSampler":
    # Imported here, because they take seconds: Ctrl-C ends the job cleanly meanwhile.
    if arguments.endpoint:
        from services.rollout.jobs.endpoint import EndpointSampler

        sampling = sampling_of(arguments)
        return EndpointSampler(arguments.endpoint, arguments.model, sampling, in_flight=arguments.in_flight)
    from services.rollout.jobs.offline import OfflineSampler

    rollout = RolloutSection(
        engine=arguments.engine,
        dtype=arguments.dtype,
        max_in_flight=arguments.in_flight,
        tensor_parallel_size=arguments.tensor_parallel_size,
    )
    return OfflineSampler(
        arguments.model,
        rollout,
        sampling_of(arguments),
        max_prompt_tokens=arguments.max_prompt_tokens,
        seed=arguments.seed,
        thinking=False,
    )


def _attempt(arguments: argparse.Namespace, problems: list[Problem], journal: Journal, *, earlier: list[bool]) -> None:
    from calopd.data.answers import is_correct

    sampler = _sampler(arguments)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("solving", completed=len(earlier), total=len(earlier) + len(problems))
        right = sum(earlier)
        wanted = ((problem, problem, problem_seed(arguments.seed, problem.id)) for problem in problems)
        for number, (problem, _, text) in enumerate(sampler.sample(wanted), len(earlier) + 1):
            correct = is_correct(text, problem.answer)
            right += correct
            journal.add({"id": problem.id, "correct": correct, "solution": text})
            progress.update(task, advance=1, description=f"solving ({right} of {number} correct)")
    sampler.close()


def _stop(number: int, frame: FrameType | None) -> None:
    """End at once: every attempt is on the disk, and an engine that is starting ends with pages of tracebacks.

    vLLM's processes end first: nobody else would end them, and they hold the memory of the GPUs.
    """
    print("\nstopped; repeat the command to resume", file=sys.stderr, flush=True)
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    os._exit(INTERRUPTED_EXIT)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    accept_interrupts()
    command, words = find_command(["data", "solve", *sys.argv[1:]])
    arguments = command.parser().parse_args(words)
    kept, total = solve(arguments)
    print(f"{kept} of {total} problems have a correct solution: {arguments.out}")


if __name__ == "__main__":
    guarded(main)
