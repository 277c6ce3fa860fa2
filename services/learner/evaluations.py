"""Held-out problems, answered by the rollout replicas while they have nothing to write for a step.

An evaluation is of one policy: its tickets name the version, its samples are of that version, and the policy stays on
the disk until the last of them is there. It is opened when its policy is published and collected between two steps;
nobody waits for it but the end of the run. Results are files, one a version, so that a restart evaluates nothing twice.
"""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calopd.config import Config
from calopd.core.phase import Phase
from calopd.core.statistics import average, difference
from calopd.core.types import EVALUATION, Ticket
from calopd.data.problems import load_problems
from calopd.rundir.files import write_json
from calopd.tracking.prometheus_tracker import last_step
from calopd.transport.redis_queue import Queue
from services.learner import prometheus
from services.learner.batching import REOPEN_AFTER
from services.learner.status import Status
from services.learner.tickets import evaluation_batch, evaluation_tickets

log = logging.getLogger(__name__)


def evaluation_file(run_dir: Path, version: int) -> Path:
    return run_dir / "evaluations" / f"{version:06d}.json"


def read_evaluation(run_dir: Path, version: int) -> dict[str, Any] | None:
    file = evaluation_file(run_dir, version)
    return json.loads(file.read_text()) if file.exists() else None


@dataclass(slots=True)
class _UnderWay:
    tickets: list[Ticket]
    last: str = "0-0"
    arrived: set[int] = field(default_factory=set)
    scores: dict[str, list[bool]] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.arrived) == len(self.tickets)


class Evaluations:
    """The evaluations of a run; only the first rank has them."""

    def __init__(self, config: Config, queue: Queue, run_dir: Path, status: Status) -> None:
        self._config, self._queue, self._run_dir, self._status = config, queue, run_dir, status
        heldout = config.data.heldout
        self._problems = load_problems(heldout) if heldout is not None and config.evaluation.problems else []
        self._under_way: dict[int, _UnderWay] = {}

    @property
    def needed(self) -> set[int]:
        """Versions whose policy must stay on the disk."""
        return set(self._under_way)

    def resume(self, step: int) -> None:
        """Go on with what was under way; forget what belongs to steps that will be done again."""
        for file in (self._run_dir / "evaluations").glob("*.json"):
            if int(file.stem) > step:
                file.unlink()
            else:
                self._show(json.loads(file.read_text()))
        for batch in self._queue.open_batches():
            if batch.startswith(EVALUATION):
                version = int(batch.removeprefix(EVALUATION))
                if version > step or not self._problems or evaluation_file(self._run_dir, version).exists():
                    self._queue.release_batch(batch)
                else:
                    self._open(version)

    def open(self, version: int) -> None:
        """Issue the tickets of a policy that is due; skipped, and said so, where the one before is not done yet."""
        every, last = self._config.evaluation.every, self._config.run.steps
        due = version in (0, last) or (every and version % every == 0)
        if not (due and self._problems) or evaluation_file(self._run_dir, version).exists():
            return
        if self.needed - {version} and version != last:
            prometheus.evaluations_skipped.inc()
            log.warning(
                "policy %d is not evaluated: the evaluation of policy %d is under way. Raise evaluation.every or lower "
                "evaluation.problems", version, min(self.needed)
            )  # fmt: skip
            return
        self._open(version)

    def _open(self, version: int) -> None:
        tickets = evaluation_tickets(self._config, self._problems, self._queue.run, version)
        self._queue.open_batch(evaluation_batch(version), tickets)
        self._under_way.setdefault(version, _UnderWay(tickets))

    def collect(self, block_seconds: float = 0.0) -> bool:
        """Take in what has arrived, and finish what is complete; whether anything had."""
        any_arrived = False
        for version, evaluation in list(self._under_way.items()):
            batch = evaluation_batch(version)
            arrivals = self._queue.arrivals(batch, after=evaluation.last, block_seconds=block_seconds)
            if arrivals:
                any_arrived = True
                evaluation.last = arrivals[-1].entry
                fresh = [a for a in arrivals if a.index not in evaluation.arrived]
                evaluation.arrived.update(a.index for a in fresh)
                for trajectory in self._queue.results(batch, [a.index for a in fresh if a.tokens]):
                    evaluation.scores.setdefault(trajectory.ticket.problem_id, []).append(trajectory.correct)
                    evaluation.lengths.append(len(trajectory.sample.response_ids))
            if evaluation.complete:
                self._finish(version, evaluation)
        return any_arrived

    def wait(self) -> None:
        """Until all are done: at the end of a run, when the replicas have nothing else to do."""
        idle = 0
        while self._under_way:
            version, evaluation = min(self._under_way.items())
            progress = f"policy {version}, {len(evaluation.arrived)}/{len(evaluation.tickets)}"
            self._status.enter(Phase.EVALUATING, progress)
            idle = 0 if self.collect(block_seconds=1.0) else idle + 1
            if idle and idle % REOPEN_AFTER == 0 and version in self._under_way:
                # Nothing happens, unless the server came back without its data.
                self._queue.open_batch(evaluation_batch(version), evaluation.tickets)

    def _finish(self, version: int, evaluation: _UnderWay) -> None:
        by_problem = {problem: sum(flags) / len(flags) for problem, flags in sorted(evaluation.scores.items())}
        estimate = average({"heldout": list(by_problem.values())}) if by_problem else None
        result = {
            "policy_version": version,
            "accuracy": estimate.value if estimate else 0.0,
            "interval_95": [estimate.low, estimate.high] if estimate else None,
            "problems": len(by_problem),
            "samples": self._config.evaluation.samples,
            "missing": len(evaluation.tickets) - len(evaluation.lengths),
            "response_length_mean": sum(evaluation.lengths) / max(1, len(evaluation.lengths)),
            "by_problem": by_problem,
        }
        write_json(evaluation_file(self._run_dir, version), result)
        self._queue.release_batch(evaluation_batch(version))
        del self._under_way[version]
        self._show(result)
        log.info("policy %d: held-out accuracy %.3f on %d problems", version, result["accuracy"], len(by_problem))

    def newest(self) -> tuple[int, float] | None:
        """Policy version and accuracy of the newest result."""
        known = self._status.evaluations
        return (max(known), known[max(known)]) if known else None

    def _show(self, result: dict[str, Any]) -> None:
        self._status.evaluations[result["policy_version"]] = result["accuracy"]
        newest = max(self._status.evaluations)
        last_step.update(evaluation_accuracy=self._status.evaluations[newest], evaluation_policy_version=newest)


def gain_interval(before: dict[str, Any], after: dict[str, Any]) -> tuple[float, float]:
    """95 % interval of the gain: the paired bootstrap over the problems that both answered."""
    problems = sorted(before["by_problem"].keys() & after["by_problem"].keys())
    ours, theirs = ([result["by_problem"][p] for p in problems] for result in (after, before))
    gain = difference({"heldout": ours}, {"heldout": theirs}).estimate
    return gain.low, gain.high
