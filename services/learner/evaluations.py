"""Evaluations on held-out problems, sampled by the rollout replicas when no tickets of a step are waiting.

An evaluation belongs to one policy version. Its tickets name the version, and the policy stays on disk until the last
sample has arrived. It is opened when the policy is published and collected between steps; only the end of the run waits
for it. Each result is one file per version, so that a restart does not evaluate a version again.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from calopd.config import Config
from calopd.core.errors import ResultsLost
from calopd.core.phase import Phase
from calopd.core.statistics import average, difference
from calopd.core.types import EVALUATION, Ticket, Trajectory
from calopd.data.problems import load_problems
from calopd.rundir.files import write_json
from calopd.rundir.layout import RunDir
from calopd.rundir.policies import is_intact, published_sha256
from calopd.tracking.prometheus_tracker import last_step
from calopd.transport.queue import Arrival, Queue
from services.learner import prometheus
from services.learner.batching import REOPEN_AFTER, of_tickets, restore_batch
from services.learner.status import Status
from services.learner.tickets import evaluation_batch, evaluation_tickets

log = logging.getLogger(__name__)


def read_evaluation(run_dir: RunDir, version: int) -> dict[str, Any] | None:
    file = run_dir.evaluation(version)
    return json.loads(file.read_text()) if file.exists() else None


@dataclass(frozen=True, slots=True)
class _Judged:
    """A sample, as far as an evaluation keeps it."""

    problem_id: str
    correct: bool
    tokens: int


@dataclass(slots=True)
class _Running:
    """An evaluation whose samples are still arriving."""

    tickets: list[Ticket]
    last: str = "0-0"
    """Stream entry of the last arrival."""
    arrived: dict[int, _Judged | None] = field(default_factory=dict)
    """Ticket index -> its sample; None for a dead letter."""

    @property
    def complete(self) -> bool:
        return len(self.arrived) == len(self.tickets)

    @property
    def judged(self) -> list[_Judged]:
        return [sample for sample in self.arrived.values() if sample is not None]


class Evaluations:
    """The evaluations of a run; they exist on rank 0 only."""

    def __init__(self, config: Config, queue: Queue, run_dir: RunDir, status: Status) -> None:
        self._config, self._queue, self._run_dir, self._status = config, queue, run_dir, status
        heldout = config.data.heldout
        self._problems = load_problems(heldout) if heldout is not None and config.evaluation.problems else []
        self._running: dict[int, _Running] = {}

    @property
    def needed(self) -> set[int]:
        """Versions whose policy must stay on disk."""
        return set(self._running)

    def resume(self, step: int) -> None:
        """Resume running evaluations; drop those of steps after the checkpoint, which are repeated."""
        for file in self._run_dir.evaluation_files:
            if int(file.stem) > step:
                file.unlink()
            else:
                self._show(json.loads(file.read_text()))
        for batch in self._queue.open_batches():
            if batch.startswith(EVALUATION):
                version = int(batch.removeprefix(EVALUATION))
                if version > step or not self._problems or self._run_dir.evaluation(version).exists():
                    self._queue.release_batch(batch)
                    continue
                self._open(version)
                if version < step and not is_intact(self._config.policies, version):
                    self.drop(version)

    def drop(self, version: int) -> None:
        """End the evaluation of a policy whose weights nobody has any more."""
        if self._running.pop(version, None) is not None:
            self._queue.release_batch(evaluation_batch(version))
            log.warning("the evaluation of policy %d is dropped: the policy is lost or damaged", version)

    def open(self, version: int) -> None:
        """Issue the tickets of a policy if an evaluation is due; while another one is running, warn and skip it."""
        every, last = self._config.evaluation.every, self._config.run.steps
        due = version in (0, last) or (every and version % every == 0)
        if not (due and self._problems) or self._run_dir.evaluation(version).exists():
            return
        if self.needed - {version} and version != last:
            prometheus.evaluations_skipped.inc()
            log.warning(
                "policy %d is not evaluated: the evaluation of policy %d is still running. Raise evaluation.every or "
                "lower evaluation.problems", version, min(self.needed)
            )  # fmt: skip
            return
        self._open(version)

    def _open(self, version: int) -> None:
        sha256 = published_sha256(self._config.policies, version) or ""
        tickets = evaluation_tickets(self._config, self._problems, self._queue.run, version, sha256)
        self._queue.open_batch(evaluation_batch(version), tickets)
        self._running.setdefault(version, _Running(tickets))

    def collect(self, block_seconds: float = 0.0) -> bool:
        """Collect new samples and finish complete evaluations; return whether any sample was new."""
        any_arrived = False
        for version, evaluation in list(self._running.items()):
            batch = evaluation_batch(version)
            arrivals = self._queue.arrivals(batch, after=evaluation.last, block_seconds=block_seconds)
            if arrivals:
                any_arrived = True
                evaluation.last = arrivals[-1].entry
                self._take(batch, evaluation, arrivals)
            if evaluation.complete:
                self._finish(version, evaluation)
        return any_arrived

    def _take(self, batch: str, evaluation: _Running, arrivals: list[Arrival]) -> None:
        """Read new samples; of several arrivals of a ticket, which was issued again, the last one counts."""
        known = of_tickets(arrivals, {ticket.index for ticket in evaluation.tickets}, batch)
        arrived, newest = evaluation.arrived, {arrival.index: arrival for arrival in known}
        for arrival in newest.values():
            if arrival.tokens < 0:
                arrived.pop(arrival.index, None)
            elif arrival.tokens == 0:
                arrived.setdefault(arrival.index, None)
        unread = [arrival.index for arrival in newest.values() if arrival.tokens > 0 and not arrived.get(arrival.index)]
        for trajectory in self._read(batch, evaluation.tickets, unread):
            ticket, tokens = trajectory.ticket, len(trajectory.sample.response_ids)
            arrived[ticket.index] = _Judged(ticket.problem_id, trajectory.correct, tokens)

    def _read(self, batch: str, tickets: list[Ticket], indices: list[int]) -> list[Trajectory]:
        """The results of these tickets; tickets whose result is lost or damaged are issued again."""
        try:
            return self._queue.results(batch, indices)
        except ResultsLost as error:
            log.warning("%s. They are issued again", error)
            self._queue.reissue(batch, [ticket for ticket in tickets if ticket.index in error.indices])
            return self._read(batch, tickets, [index for index in indices if index not in error.indices])

    def finish(self) -> Iterator[None]:
        """Wait until all evaluations are complete, at the end of a run; yields at least once per second."""
        empty_polls = 0
        while self._running:
            version, evaluation = min(self._running.items())
            progress = f"policy {version}, {len(evaluation.arrived)}/{len(evaluation.tickets)}"
            self._status.enter(Phase.EVALUATING, progress)
            empty_polls = 0 if self.collect(block_seconds=1.0) else empty_polls + 1
            if empty_polls and empty_polls % REOPEN_AFTER == 0 and version in self._running:
                evaluation.last = restore_batch(self._queue, evaluation_batch(version), evaluation.tickets)
            yield

    def _finish(self, version: int, evaluation: _Running) -> None:
        judged, correct = evaluation.judged, defaultdict[str, list[bool]](list)
        for sample in judged:
            correct[sample.problem_id].append(sample.correct)
        by_problem = {problem: sum(flags) / len(flags) for problem, flags in sorted(correct.items())}
        estimate = average({"heldout": list(by_problem.values())}) if by_problem else None
        result = {
            "policy_version": version,
            "accuracy": estimate.value if estimate else 0.0,
            "interval_95": [estimate.low, estimate.high] if estimate else None,
            "problems": len(by_problem),
            "samples": self._config.evaluation.samples,
            "missing": len(evaluation.tickets) - len(judged),
            "response_length_mean": sum(sample.tokens for sample in judged) / max(1, len(judged)),
            "by_problem": by_problem,
        }
        write_json(self._run_dir.evaluation(version), result)
        self._queue.release_batch(evaluation_batch(version))
        del self._running[version]
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
    """95 % interval of the gain in accuracy: paired bootstrap over the problems that both evaluations have."""
    problems = sorted(before["by_problem"].keys() & after["by_problem"].keys())
    ours, theirs = ([result["by_problem"][p] for p in problems] for result in (after, before))
    gain = difference({"heldout": ours}, {"heldout": theirs}).estimate
    return gain.low, gain.high
