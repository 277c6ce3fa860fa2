"""The training loop: open a step, learn from its trajectories as they arrive, checkpoint, publish, open the next.

Every rank runs it with its `Trainer`. Rank 0 has the `Coordinator`, the other ranks a `Follower`, which does nothing.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from calopd.config import Config
from calopd.core.errors import TooFewTrajectories
from calopd.core.phase import Phase
from calopd.core.step_metrics import MeasuredStep, StepResult
from calopd.core.types import Ticket, Trajectory
from calopd.data.problems import load_problems
from calopd.rundir.checkpoints import Record
from calopd.rundir.run_id import ensure_run_id
from calopd.transport.queue import open_queue
from services.learner.batching import Assignment
from services.learner.coordinator import Coordinator, Follower
from services.learner.ranks import Ranks
from services.learner.tickets import step_batch, step_tickets
from services.learner.trainer import Trainer, Update

log = logging.getLogger(__name__)


class TrainingLoop:
    def __init__(self, config: Config, ranks: Ranks) -> None:
        self._config, self._ranks = config, ranks
        self._problems = load_problems(config.data.train)
        self._trainer = Trainer(config, ranks)
        coordinates = ranks.rank == 0
        run_id = ranks.broadcast(ensure_run_id(config.run_dir) if coordinates else None)
        self._queue = open_queue(config.queue.url, run_id)
        self._coordinator = Coordinator(config, self._queue) if coordinates else Follower()
        self._record = Record()
        self._clock, self._idle = time.monotonic(), 0.0

    def run(self) -> None:
        """Train to the end, from the last checkpoint if there is one."""
        coordinator, trainer = self._coordinator, self._trainer
        self._resume()
        coordinator.publish(self._record.step, trainer.full_weights())
        self._clock = time.monotonic()
        for step in range(self._record.step, self._config.run.steps):
            self._step(step)
        coordinator.finish_evaluations()
        coordinator.enter(Phase.EXPORTING)
        coordinator.export(trainer.student, trainer.full_weights(), self._record)
        coordinator.enter(Phase.DONE)

    def _resume(self) -> None:
        """Restore the last checkpoint."""
        found = self._ranks.broadcast(self._coordinator.latest_checkpoint())
        if found is not None:
            self._record = self._trainer.load(found)
            log.info("resumed at step %d from %s", self._record.step, found)
        self._coordinator.resume(self._record.step, found)

    def _step(self, step: int) -> None:
        coordinator, trainer = self._coordinator, self._trainer
        tickets = step_tickets(self._config, self._problems, self._queue.run, step)
        self._learn(step, tickets)

        coordinator.enter(Phase.OPTIMIZER_STEP)
        result = StepResult()
        for of_rank in self._ranks.gather(trainer.result):
            result.merge(of_rank)
        self._check_missing(step, len(tickets) - len(result.used))
        update = trainer.optimizer_step(result.sums)

        # Before the checkpoint: on resume, the line of a step that is not in it is dropped, but none is ever added.
        coordinator.report(self._finish_step(step, tickets, result, update))

        done, every = step + 1, self._config.learner.checkpoint_every
        checkpoint_due = done % every == 0 or done == self._config.run.steps
        if checkpoint_due:
            coordinator.enter(Phase.CHECKPOINTING)
            trainer.save(self._record)
            coordinator.checkpoint_saved()
        coordinator.enter(Phase.PUBLISHING)
        coordinator.publish(done, trainer.full_weights())
        if checkpoint_due:
            coordinator.release(range(max(0, done - every), done))

    def _learn(self, step: int, tickets: list[Ticket]) -> None:
        """Forward and backward over this rank's share of the step, as it arrives."""
        coordinator, trainer = self._coordinator, self._trainer
        coordinator.enter(Phase.WAITING, f"0/{len(tickets)}")
        trainer.begin(step)
        micro_batches: Iterable[list[Trajectory]] = self._micro_batches(step, tickets)
        plan = None
        if trainer.needs_whole_step:
            micro_batches, facts = trainer.inspect(micro_batches)
            plan = trainer.plan(list(chain.from_iterable(self._ranks.gather(facts))))
        for trajectories in micro_batches:
            coordinator.enter(Phase.LEARNING, f"{len(trainer.result.used)}/{len(tickets)}")
            trainer.learn(trajectories, plan)
            coordinator.enter(Phase.WAITING, f"{len(trainer.result.used)}/{len(tickets)}")

    def _micro_batches(self, step: int, tickets: list[Ticket]) -> Iterator[list[Trajectory]]:
        """This rank's micro-batches; [] if others have one and this rank has none."""
        assigned = self._coordinator.open_step(step, tickets, self._ranks.size)
        self._idle = 0.0
        while True:
            start = time.monotonic()
            over, assignment = self._ranks.broadcast(_next(assigned))
            self._idle += time.monotonic() - start
            if over:
                return
            if assignment is not None:
                yield self._queue.results(step_batch(step), assignment[self._ranks.rank])

    def _finish_step(self, step: int, tickets: list[Ticket], result: StepResult, update: Update) -> MeasuredStep:
        """Stop the step's clock and add the step to the record that is saved with the checkpoint."""
        # The clock runs from line to line: saving and publishing count for the next step.
        seconds, self._clock = time.monotonic() - self._clock, time.monotonic()
        self._record.step = step + 1
        self._record.issued += len(tickets)
        self._record.used[step_batch(step)] = sorted(result.used)
        self._record.sampler = result.sampler or self._record.sampler
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
            evaluation=self._coordinator.newest_evaluation(),
        )

    def _check_missing(self, step: int, missing: int) -> None:
        """Stop before the optimizer if too many tickets became dead letters. All ranks do, with one exit code."""
        learner = self._config.learner
        if missing and missing >= learner.max_missing_ratio * learner.trajectories:
            reasons = Counter(error for ticket, error in self._queue.dead_letters() if ticket.batch == step_batch(step))
            why = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
            raise TooFewTrajectories(
                f"step {step} lacks {missing} of {learner.trajectories} trajectories, more than "
                f"learner.max_missing_ratio = {learner.max_missing_ratio} allows: {why}"
            )


def _next(assigned: Iterator[Assignment | None]) -> tuple[bool, Assignment | None]:
    """Whether the step is over, and the next assignment if there is one already."""
    for assignment in assigned:
        return False, assignment
    return True, None
