"""Rank 0's share of a run: the queue, evaluations, status, metrics, published policies and the run directory."""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from calopd.config import Config, save_with_run
from calopd.core.phase import Phase
from calopd.core.step_metrics import step_line
from calopd.core.step_result import MeasuredStep
from calopd.core.types import Ticket
from calopd.models.tokenizers import load_tokenizer
from calopd.planning.model_shapes import load_shape
from calopd.planning.rates import learning_flops
from calopd.rundir import checkpoints
from calopd.rundir.files import append_line, keep_lines_before
from calopd.rundir.locks import single_learner
from calopd.rundir.policies import is_intact, prune_policies, published_sha256
from calopd.rundir.policy_publisher import FilePublisher
from calopd.rundir.policy_transport import PolicyPublisher
from calopd.rundir.tensor_files import TensorStream
from calopd.transport.queue import Queue
from services.learner import prometheus
from services.learner.batching import Assignment, DynamicBatcher, assignments
from services.learner.checkpoint import Durable
from services.learner.evaluations import Evaluations
from services.learner.export import export_model, write_summary
from services.learner.resource_collector import register_resource_collector
from services.learner.status import Status, serve_status
from services.learner.student import Student
from services.learner.tickets import step_batch
from services.learner.trackers import start_trackers

log = logging.getLogger(__name__)

T = TypeVar("T")


class Coordinator:
    """Exists on rank 0 only; the other ranks have a `Follower`."""

    def __init__(self, config: Config, queue: Queue) -> None:
        self._config, self._queue, self._run_dir = config, queue, config.run_dir
        self._lock = single_learner(self._run_dir)
        self._publisher: PolicyPublisher = FilePublisher(config.policies, queue.run, config.learner.snapshot_every)
        self._opened: set[int] = set()
        """Steps that this process has opened."""
        self._sha256: dict[int, str] = {}
        """Policy version -> digest of the weights that this process has published."""
        save_with_run(config)
        self._tokenizer = load_tokenizer(config.student.path)
        self._shape = load_shape(config.student.path)
        self._batchers: dict[int, DynamicBatcher] = {}
        prometheus.run_info.labels(config.method.name, config.student.path, config.teacher.path).set(1)
        prometheus.steps_wanted.set(config.run.steps)
        volumes = {"run": self._run_dir.path, "policies": config.policies}
        register_resource_collector(config.queue.url, queue.run, volumes)
        self._status = Status(config.run.name, config.run.steps)
        self._evaluations = Evaluations(config, queue, self._run_dir, self._status)
        serve_status(self._status, config.learner.port)

    def enter(self, phase: Phase, progress: str = "") -> None:
        """Show what the learner is doing."""
        self._status.enter(phase, progress)

    def latest_checkpoint(self) -> Path | None:
        checkpoints.remove_incomplete(self._run_dir)
        return checkpoints.latest(self._run_dir)

    def resume(self, step: int, found: Path | None) -> None:
        """Drop what files and Redis hold beyond the checkpoint: only the checkpoint counts."""
        keep_lines_before(self._run_dir.trajectories, step)
        self._trackers = start_trackers(self._config, self._queue.run, step)
        here = step_batch(step)
        for batch in self._queue.open_batches():
            # Later steps are repeated. A deterministic run reaches the same weights, so their trajectories stay valid.
            if batch.startswith("step-") and (batch < here or (batch > here and not self._config.run.deterministic)):
                self._queue.release_batch(batch)
        if self._config.run.deterministic:
            self._release_without_policy(step)
        self._evaluations.resume(step)
        self._status.step = self._status.checkpoint_step = step
        prometheus.checkpoint_time.set(found.stat().st_mtime if found else time.time())

    def _release_without_policy(self, resumed: int) -> None:
        """Release incomplete steps that were opened early, for a policy before the checkpoint that is lost."""
        staleness, expected = self._config.run.max_staleness, self._config.learner.trajectories
        for step in range(resumed, resumed + staleness):
            arrived = len(self._queue.arrivals(step_batch(step), block_seconds=0.0))
            if arrived < expected and not is_intact(self._config.policies, max(0, step - staleness)):
                self._queue.release_batch(step_batch(step))

    def publish(self, version: int, weights: TensorStream) -> None:
        """Publish and announce a policy."""
        start, before = time.monotonic(), published_sha256(self._config.policies, version)
        published = self._publisher.publish(version, weights)
        sha256 = published.sha256
        if before not in (None, sha256):
            # Published before a crash with other weights: what was sampled from them is not of this policy.
            for step in range(version, version + self._config.run.max_staleness + 1):
                if step not in self._opened:
                    self._queue.release_batch(step_batch(step))
        self._sha256[version] = sha256
        self._queue.announce_policy(version, sha256)
        seconds = time.monotonic() - start
        prometheus.publish_seconds.set(seconds)
        prometheus.publish_bytes.set(published.bytes)
        kind = "changes" if published.is_delta else "whole"
        log.info("policy %d is published: %s, %.3f MB in %.2f s", version, kind, published.bytes / 1e6, seconds)

    def _answer_requests(self, items: Iterator[T]) -> Iterator[T]:
        """Pass on what comes at least every second; in between, publish again what a rollout cannot read."""
        for item in items:
            for version in self._queue.requested_policies():
                if self._publisher.publish_whole(version):
                    log.warning("policy %d is published again, whole: a rollout could not read it", version)
                else:
                    log.error("policy %d was asked for by a rollout, but is not kept", version)
            yield item

    def evaluate(self, version: int) -> None:
        """Open the evaluation of a published policy if one is due, and remove the policies that nobody needs."""
        self._evaluations.collect()
        self._evaluations.open(version)
        # Tickets that were issued early may still need the policies of the last `max_staleness` versions.
        keep = max(self._config.learner.keep_policies, self._config.run.max_staleness + 1)
        prune_policies(self._config.policies, version, keep, self._evaluations.needed)

    def open_step(self, step: int, tickets: list[Ticket], ranks: int) -> Iterator[Assignment | None]:
        """Issue the tickets of a step; then assign its trajectories to the ranks as they arrive."""
        tickets = [replace(t, policy_sha256=self._sha256.get(t.policy_version, "")) for t in tickets]
        self._queue.open_batch(step_batch(step), tickets)
        self._opened.add(step)
        log.info("step %d is open: %d tickets", step + 1, len(tickets))
        self._batchers[step] = DynamicBatcher(
            len(tickets),
            self._config.learner.micro_batch_tokens,
            ranks=ranks,
            deterministic=self._config.run.deterministic,
            cost=self._cost,
        )
        return self._answer_requests(assignments(self._queue, step_batch(step), tickets, self._batchers[step]))

    def _cost(self, tokens: int) -> float:
        """Cost of a trajectory for a rank: its FLOPs, or its length if the architecture is not known."""
        return tokens if self._shape is None else learning_flops(self._shape, 0, tokens)

    def all_rounds(self, step: int) -> list[Assignment]:
        """The whole step again, after all its trajectories have arrived."""
        return self._batchers[step].rounds()

    def newest_evaluation(self) -> tuple[int, float] | None:
        """Policy version and accuracy of the newest held-out evaluation."""
        return self._evaluations.newest()

    def report(self, measured: MeasuredStep) -> None:
        """Write the step's line and its example trajectories, and show them."""
        line: dict[str, Any] = step_line(measured, self._config.method.probe_contexts)
        self._trackers.record(line)
        self._batchers.pop(measured.step, None)
        for row in sorted(measured.result.shown, key=lambda row: row["index"]):
            tokens = [self._tokenizer.decode([i]) for i in row["response_ids"]]
            append_line(self._run_dir.trajectories, {"step": line["step"], **row, "tokens": tokens})
        self._status.finish_step(line)
        self._count_overdue()
        log.info(
            "step %d: retained %.3f, zero %.3f, accuracy %.3f, loss %.4f, %.1f s (idle %.1f)",
            line["step"] + 1, line["retained_ratio"], line["zero_ratio"], line["accuracy"], line["loss"],
            line["seconds"], line["seconds_idle"],
        )  # fmt: skip

    def checkpoint_durable(self, durable: Durable) -> None:
        """Delete the trajectories of the steps that this checkpoint is the first to contain."""
        prometheus.checkpoint_time.set(time.time())
        prometheus.checkpoint_seconds.set(durable.seconds)
        for step in range(self._status.checkpoint_step, durable.step):
            self._queue.release_batch(step_batch(step))
        self._status.checkpoint_step = durable.step
        self._count_overdue()

    def _count_overdue(self) -> None:
        unsaved = self._status.step - self._status.checkpoint_step
        prometheus.overdue_steps.set(max(0, unsaved - self._config.learner.checkpoint_every))

    def finish_evaluations(self) -> Iterator[None]:
        """Wait for the evaluations that are still running; yields while it waits."""
        return self._answer_requests(self._evaluations.finish())

    def export(self, student: Student, weights: TensorStream) -> None:
        """Write the trained student."""
        export_model(self._run_dir.model, student, weights, self._tokenizer)

    def finish(self, record: checkpoints.Record) -> None:
        """Write the summary of the run, and close the trackers."""
        write_summary(self._run_dir, self._config, record)
        self._trackers.close()
        log.info("the run is complete: %d steps; the trained student is in %s", record.step, self._run_dir.model)


class Follower:
    """The coordinator of the other ranks: does nothing, since rank 0 does it for all."""

    def enter(self, phase: Phase, progress: str = "") -> None: ...

    def latest_checkpoint(self) -> Path | None:
        return None

    def resume(self, step: int, found: Path | None) -> None: ...

    def publish(self, version: int, weights: TensorStream) -> None:
        weights.drain()

    def evaluate(self, version: int) -> None: ...

    def open_step(self, step: int, tickets: list[Ticket], ranks: int) -> Iterator[Assignment | None]:
        return iter(())

    def all_rounds(self, step: int) -> list[Assignment]:
        return []

    def newest_evaluation(self) -> tuple[int, float] | None:
        return None

    def report(self, measured: MeasuredStep) -> None: ...

    def checkpoint_durable(self, durable: Durable) -> None: ...

    def finish_evaluations(self) -> Iterator[None]:
        return iter(())

    def export(self, student: Student, weights: TensorStream) -> None:
        weights.drain()

    def finish(self, record: checkpoints.Record) -> None: ...
