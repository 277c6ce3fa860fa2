"""`calopd eval`: start the sampling processes of a job, show their progress and write the results."""

import json
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from calopd.config.placement import Group
from calopd.core.errors import CalopdError
from calopd.evaluation.job import Job, read_samples
from calopd.evaluation.layout import EvaluationDir
from calopd.evaluation.results import Results, write_results
from calopd.local.services import REPEAT, LocalServices
from calopd.local.supervisor import ProcessFailed

SAMPLER = "services.rollout.jobs.evaluate"
POLL_SECONDS = 0.25
LOG_SECONDS = 10.0
"""Time between progress lines if the output is not a terminal."""


class EvaluationFailed(CalopdError):
    """A sampling process failed."""


def run_job(
    job: Job, directory: EvaluationDir, gpus: Sequence[Group], console: Console, *, how: str = REPEAT
) -> Results:
    """Sample the missing responses with one process per entry of `gpus`, then write results.json.

    `how` tells the user how to resume after a failure.
    """
    total = sum(1 for _ in job.tasks())
    keys = {task.key for task in job.tasks()}
    earlier = [row["correct"] for key, row in read_samples(directory).items() if key in keys]
    done = len(earlier)
    if done < total:
        start = time.monotonic()
        try:
            tokens = _sample(job, directory, gpus, console, (done, sum(earlier)), total)
        except ProcessFailed as error:
            # The same command would fail again after an error that the process could name.
            again = "" if error.repeats else f". The samples are saved: {how}"
            raise EvaluationFailed(f"{error}{again}") from None
        seconds = time.monotonic() - start
        console.print(
            f"{job.settings.label}: {total - done:,} samples in {seconds:.0f} s, including start-up; "
            f"{tokens / seconds:,.0f} tokens/s",
            highlight=False,
        )
    else:
        console.print(f"{job.settings.label}: all {total:,} samples are already on disk", highlight=False)
    return write_results(job, directory)


def _sample(
    job: Job, directory: EvaluationDir, gpus: Sequence[Group], console: Console, earlier: tuple[int, int], total: int
) -> int:
    """Run the replicas until they finish; return the number of sampled tokens. `earlier`: samples, and correct ones."""
    done, done_right = earlier
    watched = [JournalProgress(directory, replica) for replica in range(len(gpus))]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    began = said = time.monotonic()
    with (
        Progress(*columns, TextColumn("ETA"), TimeRemainingColumn(), console=console) as progress,
        LocalServices(directory.logs, [job.settings.path]) as services,
    ):
        bar = progress.add_task(job.settings.label, completed=done, total=total, visible=console.is_terminal)
        processes = services.start_replicas(SAMPLER, str(directory), gpus=gpus)
        for _ in services.watch(*processes, poll_seconds=POLL_SECONDS):
            for journal in watched:
                journal.update()
            new, right = (sum(getattr(w, name) for w in watched) for name in ("new", "right"))
            share = f" {(done_right + right) / (done + new):.3f} correct" if done + new else " starting"
            progress.update(bar, completed=done + new, description=job.settings.label + share)
            if not console.is_terminal and time.monotonic() - said > LOG_SECONDS:
                said = time.monotonic()
                eta = f", ETA {(total - done - new) * (said - began) / new:.0f} s" if new else ""
                console.print(f"{job.settings.label} {done + new}/{total}{share}{eta}", highlight=False)
    return sum(w.tokens for w in watched)


class JournalProgress:
    """Counts of the samples that another process appends to its journal."""

    def __init__(self, directory: EvaluationDir, replica: int) -> None:
        self._file = directory.journal(replica)
        # The writing process removes a partial line at the end, so it is not counted here.
        self._place = self._file.read_bytes().rfind(b"\n") + 1 if self._file.exists() else 0
        self.new = self.right = self.tokens = 0

    def update(self) -> None:
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            file.seek(self._place)
            fresh = file.read()
        fresh = fresh[: fresh.rfind(b"\n") + 1]
        self._place += len(fresh)
        for row in map(json.loads, fresh.splitlines()):
            self.new += 1
            self.right += row["correct"]
            self.tokens += row["length"]
