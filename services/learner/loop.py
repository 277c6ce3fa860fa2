"""The training loop: learn from the trajectories of a step as they arrive, publish, open the next step, checkpoint.

Every rank runs it with its `Trainer`. Rank 0 has the `Coordinator`, the other ranks a `Follower`, which does nothing.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar, cast

from calopd.config import Config
from calopd.core.activity import Activities, Role, RoleSeconds, role_seconds
from calopd.core.errors import ResultsLost, StaleTrajectory, TooFewTrajectories
from calopd.core.heartbeat import Heartbeat
from calopd.core.method_inputs import StepFacts, StepPlan
from calopd.core.phase import Phase
from calopd.core.step_result import MeasuredStep, StepResult
from calopd.core.types import Ticket, Trajectory
from calopd.data.problems import load_problems
from calopd.rundir.checkpoints import Record
from calopd.rundir.run_id import ensure_run_id
from calopd.rundir.training_problems import keep_problems
from calopd.tracking.trace import span
from calopd.transport.queue import open_queue
from services.learner.batching import Assignment, PolicyWanted
from services.learner.coordinator import Coordinator, Follower
from services.learner.lead import show_lead
from services.learner.ranks import Ranks
from services.learner.tickets import step_batch, step_tickets
from services.learner.trainer import Update
from services.learner.trainers import build_trainer

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _OpenStep:
    """A step whose tickets are issued."""

    tickets: list[Ticket]
    assigned: Iterator[Assignment | PolicyWanted | None]
    """Its micro-batches, on rank 0."""


class TrainingLoop:
    def __init__(self, config: Config, ranks: Ranks, heartbeat: Heartbeat | None = None) -> None:
        self._config, self._ranks = config, ranks
        self._heartbeat = heartbeat or Heartbeat()
        self._problems = load_problems(config.data.train)
        self._trainer = build_trainer(config, ranks)
        coordinates = ranks.rank == 0
        run_id = ranks.broadcast(ensure_run_id(config.run_dir) if coordinates else None)
        self._queue = open_queue(config.queue.url, run_id)
        self._coordinator = Coordinator(config, self._queue, self._heartbeat) if coordinates else Follower()
        if coordinates:
            keep_problems(config.run_dir, config.data.train, len(self._problems))
            show_lead(self._queue)
        self._record = Record()
        self._policies: dict[int, str] = {}
        """Policy version -> digest of its weights."""
        self._open: dict[int, _OpenStep] = {}
        self._optimized: dict[int, float] = {}
        """Policy version -> Unix time of its optimizer step."""
        self._clock, self._idle = time.monotonic(), 0.0
        self._activities: Activities = {}

    def run(self) -> None:
        """Train to the end, from the last checkpoint if there is one."""
        coordinator, trainer = self._coordinator, self._trainer
        self._enter(Phase.STARTING)
        self._resume()
        self._publish(self._record.step)
        coordinator.evaluate(self._record.step)
        self._clock = time.monotonic()
        for step in range(self._record.step, self._config.run.steps):
            self._step(step)
        for _ in self._together(coordinator.finish_evaluations()):
            pass
        self._enter(Phase.CHECKPOINTING)
        self._collect_checkpoint(wait=True)
        self._enter(Phase.EXPORTING)
        if not self._config.emulated:
            with span("export"):
                coordinator.export(trainer.student, trainer.exported_weights())
        coordinator.finish(self._record)
        self._enter(Phase.DONE)
        self._heartbeat.leave(self)

    def _enter(self, phase: Phase, progress: str = "") -> None:
        """Start a phase: each is a piece of work of this rank, which must end in time."""
        self._heartbeat.enter(self, f"{phase} {progress}".rstrip())
        self._coordinator.enter(phase, progress)

    def _resume(self) -> None:
        """Restore the last checkpoint."""
        # The ranks wait for one file at a time: however large a checkpoint is, that ends in time.
        *_, found = None, *self._together(self._coordinator.latest_checkpoint())
        if found is not None:
            self._enter(Phase.STARTING, f"loading {found.name}")
            self._record = self._trainer.load(found)
            log.info("resumed after step %d from %s", self._record.step, found)
        self._coordinator.resume(self._record, found)
        self._policies = {int(version): sha256 for version, sha256 in self._record.policies.items()}

    def _publish(self, version: int) -> None:
        """Publish a policy and open the steps that may be sampled from it: from here on the rollouts work."""
        coordinator, run = self._coordinator, self._config.run
        self._enter(Phase.PUBLISHING)
        self._write_policy(version)
        for step in range(version, min(version + run.max_staleness + 1, run.steps)):
            if step not in self._open:
                tickets = step_tickets(self._config, self._problems, self._queue.run, step)
                self._open[step] = _OpenStep(tickets, coordinator.open_step(step, tickets, self._ranks.size))

    def _write_policy(self, version: int) -> None:
        with span("publish policy", version=version):
            sha256 = self._coordinator.publish(version, self._trainer.policy_weights())
        self._policies[version] = self._ranks.broadcast(sha256)

    def _step(self, step: int) -> None:
        coordinator, trainer = self._coordinator, self._trainer
        tickets = self._open[step].tickets
        self._learn(step, tickets)

        self._enter(Phase.OPTIMIZER_STEP)
        result = StepResult()
        for of_rank in self._ranks.gather(trainer.result):
            result.merge(of_rank)
        self._check_missing(step, len(tickets) - len(result.used))
        update = trainer.optimizer_step(result.sums)
        self._optimized[step + 1] = time.time()

        # First, since the rollouts wait for it.
        self._publish(step + 1)
        del self._open[step]
        # Before the checkpoint: on resume, the line of a step that is not in it is dropped, but none is ever added.
        coordinator.report(self._finish_step(step, tickets, result, update))
        coordinator.evaluate(step + 1)
        if (step + 1) % self._config.learner.checkpoint_every == 0 or step + 1 == self._config.run.steps:
            self._enter(Phase.CHECKPOINTING)
            with span("checkpoint: copy", step=self._record.step):
                self._collect_checkpoint(wait=True)
                trainer.save(self._record)

    def _collect_checkpoint(self, *, wait: bool = False) -> None:
        """Handle a checkpoint that has become durable in the background; raises if it could not be written."""
        durable = self._trainer.saved(wait=wait)
        if durable is not None:
            self._coordinator.checkpoint_durable(durable)

    def _learn(self, step: int, tickets: list[Ticket]) -> None:
        """Forward and backward over this rank's share of the step, as it arrives."""
        trainer = self._trainer
        self._enter(Phase.WAITING, f"0/{len(tickets)}")
        trainer.begin(step)
        micro_batches: Iterable[list[Trajectory]] = self._micro_batches(step)
        plan = None
        if trainer.needs_whole_step:
            plan, micro_batches = self._planned(step, micro_batches)
        for trajectories in micro_batches:
            self._enter(Phase.LEARNING, f"{len(trainer.result.used)}/{len(tickets)}")
            trainer.learn(trajectories, plan)
            self._enter(Phase.WAITING, f"{len(trainer.result.used)}/{len(tickets)}")

    def _planned(
        self, step: int, micro_batches: Iterable[list[Trajectory]]
    ) -> tuple[StepPlan | None, Iterable[list[Trajectory]]]:
        """The plan of a method that must see the whole step, and the step once more in full micro-batches.

        Each rank holds the trajectories that it has looked at, and reads those that another one looked at.
        """
        held: dict[int, Trajectory] = {}
        facts: list[StepFacts] = []
        for trajectories in micro_batches:
            held |= {trajectory.ticket.index: trajectory for trajectory in trajectories}
            found = self._trainer.look(trajectories)
            facts += [found] if found is not None else []
        plan = self._trainer.plan(list(chain.from_iterable(self._ranks.gather(facts))))
        return plan, self._again(step, held, self._ranks.broadcast(self._coordinator.all_rounds(step)))

    def _again(self, step: int, held: dict[int, Trajectory], rounds: list[Assignment]) -> Iterator[list[Trajectory]]:
        for assignment in rounds:
            own = assignment[self._ranks.rank]
            lacking = [index for index in own if index not in held]
            held |= dict(zip(lacking, self._results(step, lacking), strict=True))
            yield [held.pop(index) for index in own]

    def _micro_batches(self, step: int) -> Iterator[list[Trajectory]]:
        """This rank's micro-batches; [] if others have one and this rank has none."""
        self._idle = 0.0
        for assignment in self._together(self._open[step].assigned):
            self._collect_checkpoint()
            if assignment is not None:
                yield self._results(step, assignment[self._ranks.rank])

    def _results(self, step: int, indices: list[int]) -> list[Trajectory]:
        """The trajectories of these tickets; none that was sampled from other weights than the tickets ask for."""
        try:
            found = self._queue.results(step_batch(step), indices)
        except ResultsLost as error:
            self._queue.withdraw_results(error.batch, error.indices)  # issued again when the learner is back
            raise
        for trajectory in found:
            sample = trajectory.sample
            if self._policies.get(sample.policy_version) != sample.policy_sha256:
                raise StaleTrajectory(
                    f"ticket {trajectory.ticket.id} was sampled by {trajectory.worker} from other weights than those "
                    f"published as policy {sample.policy_version}: refused"
                )
        return found

    def _together(self, items: Iterator[T | PolicyWanted | None]) -> Iterator[T | None]:
        """Rank 0's items on every rank. They come at least every second, so that no collective waits for long."""
        while True:
            start = time.monotonic()
            self._heartbeat.enter(self, "waiting for the next item of rank 0")
            with span("wait"):
                over, item = self._ranks.broadcast(_next(items))
            self._idle += time.monotonic() - start
            if over:
                return
            if isinstance(item, PolicyWanted):
                self._write_policy(item.version)
                continue
            yield cast("T | None", item)

    def _finish_step(self, step: int, tickets: list[Ticket], result: StepResult, update: Update) -> MeasuredStep:
        """Stop the step's clock and add the step to the record that is saved with the checkpoint."""
        # The clock runs from line to line: copying the checkpoint counts for the next step.
        seconds, self._clock = time.monotonic() - self._clock, time.monotonic()
        self._record.step = step + 1
        self._record.issued += len(tickets)
        self._record.used[step_batch(step)] = sorted(result.used)
        self._record.sampler = result.sampler or self._record.sampler
        needed = range(step + 1 - self._config.run.max_staleness, step + 2)
        self._record.policies = {
            str(version): self._policies[version] for version in needed if version in self._policies
        }
        self._record.seconds += seconds
        return MeasuredStep(
            result=result,
            step=step,
            epoch=step * (len(tickets) // self._config.learner.samples) // len(self._problems),
            learning_rate=update.learning_rate,
            gradient_norm=update.gradient_norm,
            denominator=update.denominator,
            missing=len(tickets) - len(result.used),
            seconds=seconds,
            idle_seconds=self._idle,
            roles=self._roles(result, update, seconds),
            first_token_seconds=self._first_token_seconds(result),
            evaluation=self._coordinator.newest_evaluation(),
        )

    def _roles(self, result: StepResult, update: Update, seconds: float) -> dict[Role, RoleSeconds]:
        """Busy, waiting and idle seconds of the roles since the last step."""
        before, now = self._activities, result.activities
        self._activities = before | now
        replicas: dict[Role, int] = {
            "rollout": self._config.rollout.replicas,
            "teacher": len(self._config.teacher_addresses),
        }
        roles = {role: role_seconds(role, before, now, seconds=seconds, processes=n) for role, n in replicas.items()}
        busy, idle = (result.sums.get(name) / self._ranks.size for name in ("learner_busy", "learner_idle"))
        busy += update.seconds
        learner = RoleSeconds(busy, max(0.0, seconds - busy - idle), idle)
        return {role: found for role, found in roles.items() if found is not None} | {"learner": learner}

    def _first_token_seconds(self, result: StepResult) -> float | None:
        """From the optimizer step of the newest policy in a step to its first token; None if not known."""
        version = max(result.first_tokens, default=-1)
        if version not in self._optimized:
            return None
        return result.first_tokens[version] - self._optimized[version]

    def _check_missing(self, step: int, missing: int) -> None:
        """Stop before the optimizer if too many tickets became dead letters. All ranks do, with one exit code."""
        learner = self._config.learner
        if missing and missing >= learner.max_missing_ratio * learner.trajectories:
            reasons = Counter(error for ticket, error in self._queue.dead_letters() if ticket.batch == step_batch(step))
            why = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
            raise TooFewTrajectories(
                f"step {step + 1} lacks {missing} of {learner.trajectories} trajectories, more than "
                f"learner.max_missing_ratio = {learner.max_missing_ratio} allows: {why}"
            )


def _next(items: Iterator[T | None]) -> tuple[bool, T | None]:
    """Whether the items are over, and the next one."""
    for item in items:
        return False, item
    return True, None
