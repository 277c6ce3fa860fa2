"""`calopd experiment run`: do the next free job until all are done; repeated, it resumes, on any number of hosts."""

import time

from rich.console import Console

from calopd.core.errors import CalopdError
from calopd.experiments.experiment_page import write_results
from calopd.experiments.host_claims import claimed
from calopd.experiments.job_execution import do_job, is_done
from calopd.experiments.planned_runs import ExperimentJob, ExperimentPlan
from calopd.experiments.preflight import require_experiment
from calopd.rundir.files import append_line, read_lines

POLL_SECONDS = 20.0


class ExperimentLoop:
    def __init__(self, plan: ExperimentPlan, console: Console) -> None:
        self._plan, self._console = plan, console
        self._failed: dict[str, str] = {}

    def run(self) -> None:
        """Do all jobs; a job that fails is reported, and those that do not need it are done nevertheless."""
        require_experiment(self._plan)
        self._say_progress()
        while remaining := self._remaining():
            if not any(self._try(job) for job in remaining):
                if all(self._blocked(job) for job in remaining):
                    break
                time.sleep(POLL_SECONDS)  # other hosts work on all jobs that are free
        self._console.print(f"page: {write_results(self._plan)}", highlight=False)
        if self._failed:
            reasons = "".join(f"\n  {name}: {reason}" for name, reason in self._failed.items())
            raise CalopdError(f"{len(self._failed)} jobs failed; repeat the command to try them again:{reasons}")

    def _remaining(self) -> list[ExperimentJob]:
        return [job for job in self._plan.jobs if job.name not in self._failed and not is_done(self._plan, job)]

    def _blocked(self, job: ExperimentJob) -> bool:
        """Whether a job needs one that failed here."""
        return any(name in self._failed for name in job.needs)

    def _try(self, job: ExperimentJob) -> bool:
        """Do the job if it is free and nothing that it needs is missing."""
        missing = {other.name for other in self._remaining()} | self._failed.keys()
        if missing.intersection(job.needs):
            return False
        with claimed(self._plan.files.claim(job.name)) as mine:
            if not mine or is_done(self._plan, job):
                return False
            self._console.print(f"\n{job.name}: starting", highlight=False)
            start = time.monotonic()
            try:
                do_job(self._plan, job, self._console)
            except CalopdError as error:
                self._failed[job.name] = str(error)
                self._console.print(f"{job.name} failed: {error}", highlight=False, markup=False)
                return True
            self._record(job, time.monotonic() - start)
        write_results(self._plan)
        self._say_progress()
        return True

    def _record(self, job: ExperimentJob, seconds: float) -> None:
        append_line(self._plan.files.durations, {"name": job.name, "kind": type(job).__name__, "seconds": seconds})

    def _say_progress(self) -> None:
        remaining, jobs = self._remaining(), self._plan.jobs
        left = self._seconds(remaining)
        eta = "" if not remaining else f", ETA {_hours(left)} on one host" if left is not None else ", ETA unknown yet"
        failed = f", {len(self._failed)} failed" if self._failed else ""
        done = len(jobs) - len(remaining) - len(self._failed)
        self._console.print(f"{done} of {len(jobs)} jobs done{failed}{eta}", highlight=False)

    def _seconds(self, jobs: list[ExperimentJob]) -> float | None:
        """Expected time of jobs: the mean of finished ones of their kind; a resumed one counts only its last part."""
        known: dict[str, list[float]] = {}
        for row in read_lines(self._plan.files.durations):
            known.setdefault(row["kind"], []).append(row["seconds"])
        if not known:
            return None
        every = [seconds for kind in known.values() for seconds in kind]
        means = {kind: sum(values) / len(values) for kind, values in known.items()}
        return sum(means.get(type(job).__name__, sum(every) / len(every)) for job in jobs)


def _hours(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 60 else f"{minutes} min"
