"""`calopd data solve`: one solution a problem from a strong model, through the rollout's engine; the right ones stay.

Each attempt is written down the moment it is complete, so that a stopped run goes on where it was.
"""

import argparse
import queue
from concurrent.futures import Future
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from calopd.answers import is_correct
from calopd.config import Config
from calopd.data import load_problems
from calopd.rundir import append_line, read_lines, write_lines
from calopd.tokens import Prompts, load_tokenizer, stop_ids
from calopd.types import Problem, Sample, Sampling
from services.rollout.engine import SampleRequest, SamplingEngine
from services.rollout.server import build_backend


def attempts_file(out: Path) -> Path:
    return out.with_name(out.name + ".attempts")


def solve(arguments: argparse.Namespace) -> tuple[int, int]:
    """Attempt what has not been attempted yet, then write the problems whose solution is right; kept and all."""
    problems = load_problems(arguments.source)
    file = attempts_file(arguments.out)
    tried = {row["id"] for row in read_lines(file)}
    waiting = [problem for problem in problems if problem.id not in tried]
    if waiting:
        _attempt(arguments, waiting, file, done=len(problems) - len(waiting), total=len(problems))
    right = {row["id"]: row["solution"] for row in read_lines(file) if row["correct"]}
    solved = [
        {"id": p.id, "problem": p.problem, "answer": p.answer, "solution": right[p.id]}
        for p in problems
        if p.id in right
    ]
    write_lines(arguments.out, solved)
    return len(right), len(problems)


def _attempt(arguments: argparse.Namespace, problems: list[Problem], file: Path, *, done: int, total: int) -> None:
    config = Config.model_validate(
        {
            "run": {"seed": arguments.seed},
            "data": {"train": arguments.source, "max_prompt_tokens": arguments.max_prompt_tokens},
            "student": {"path": arguments.model},
            "teacher": {"path": arguments.model},
            "rollout": {
                "engine": arguments.engine,
                "max_tokens": arguments.max_tokens,
                "max_in_flight": arguments.in_flight,
                "dtype": arguments.dtype,
                "tensor_parallel_size": arguments.tensor_parallel_size,
            },
            "evaluation": {"max_tokens": arguments.max_tokens},
        }
    )
    tokenizer = load_tokenizer(arguments.model)
    prompts = Prompts(
        tokenizer,
        problems,
        seed=arguments.seed,
        max_prompt_tokens=arguments.max_prompt_tokens,
        max_context_tokens=arguments.max_prompt_tokens,
        template_options={"enable_thinking": False},
    )
    sampling = Sampling(arguments.temperature, arguments.top_p, arguments.max_tokens)
    requests = [SampleRequest(prompts.ids(p), sampling, arguments.seed + i) for i, p in enumerate(problems)]
    engine = SamplingEngine(build_backend(config, stop_ids(arguments.model, tokenizer)))
    completed: queue.Queue[tuple[Problem, Future[Sample]]] = queue.Queue()

    def submit(number: int) -> None:
        problem = problems[number]
        engine.sample(requests[number]).add_done_callback(lambda future: completed.put((problem, future)))

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("solving", completed=done, total=total)
        for number in range(min(arguments.in_flight, len(problems))):
            submit(number)
        right = 0
        for number in range(len(problems)):
            problem, future = completed.get()
            if number + arguments.in_flight < len(problems):
                submit(number + arguments.in_flight)
            text = prompts.decode(future.result().response_ids)
            correct = is_correct(text, problem.answer)
            right += correct
            append_line(file, {"id": problem.id, "correct": correct, "solution": text})
            progress.update(task, advance=1, description=f"solving ({right} of {number + 1} right)")
    engine.stop()


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="calopd data solve", description=__doc__)
    top.add_argument("source", type=Path)
    top.add_argument("-o", "--out", type=Path, required=True)
    top.add_argument("--model", required=True, help="model directory or hub id")
    top.add_argument("--engine", choices=("vllm", "torch"), default="vllm")
    top.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    top.add_argument("--tensor-parallel-size", type=int, default=1)
    top.add_argument("--max-tokens", type=int, default=12_288)
    top.add_argument("--max-prompt-tokens", type=int, default=2_048)
    top.add_argument("--temperature", type=float, default=1.0)
    top.add_argument("--top-p", type=float, default=1.0)
    top.add_argument("--in-flight", type=int, default=256)
    top.add_argument("--seed", type=int, default=0)
    return top


def main() -> None:
    arguments = parser().parse_args()
    kept, total = solve(arguments)
    print(f"{kept} of {total} problems have a right solution: {arguments.out}")


if __name__ == "__main__":
    from calopd.entry import guarded

    guarded(main)
