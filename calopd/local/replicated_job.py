"""A sampling job that several processes share: each writes the attempts on its part of the problems."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from calopd.config.placement import Group
from calopd.local.entry_point import INTERRUPTED_EXIT
from calopd.local.services import LocalServices, Stopped
from calopd.rundir.files import read_lines


def attempts_file(out: Path, replica: int = 0) -> Path:
    """The journal of a replica of the job that writes `out`."""
    return out.with_name(f"{out.name}.attempts" + (f"-{replica}" if replica else ""))


def attempt_files(out: Path) -> list[Path]:
    """The journals of all replicas, also of an earlier start with another number of them."""
    return sorted(out.parent.glob(f"{out.name}.attempts*"))


def run_replicas(module: str, words: Sequence[str], gpus: Sequence[Group], out: Path, model: str) -> None:
    """Run one process per entry of `gpus` until all have done their part; show how many attempts there are."""
    logs = out.with_name(f"{out.name}.logs")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(soft_wrap=True)
    console.print(f"{len(gpus)} processes (logs in {logs})", highlight=False)
    try:
        with Progress(*columns, console=console) as progress, LocalServices(logs, [model]) as services:
            task = progress.add_task("starting", total=None)
            processes = services.start_replicas(module, *words, gpus=gpus)
            for _ in services.watch(*processes):
                attempts = [row for file in attempt_files(out) for row in read_lines(file)]
                right = sum(row["correct"] for row in attempts)
                progress.update(task, description=f"{len(attempts)} problems attempted, {right} solved")
    except Stopped:
        print("stopped; repeat the command to resume", file=sys.stderr)
        sys.exit(INTERRUPTED_EXIT)
