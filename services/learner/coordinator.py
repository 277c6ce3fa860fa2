"""Rank 0's share of a run: the queue, evaluations, status, metrics, published policies and the run directory."""

import logging
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from calopd.config import Config, save_with_run
from calopd.core.errors import PolicyError
from calopd.core.heartbeat import Heartbeat
from calopd.core.phase import Phase
from calopd.core.step_metrics import step_line
from calopd.core.step_result import MeasuredStep
from calopd.core.types import EVALUATION, Ticket
from calopd.local.entry_point import tell_progress
from calopd.models.tokenizers import load_tokenizer
from calopd.planning.model_shapes import load_shape
from calopd.planning.rates import learning_flops
from calopd.rundir import checkpoints
from calopd.rundir.files import append_line, keep_lines_before, write_text
from calopd.rundir.locks import single_learner
from calopd.rundir.policies import is_intact, prune_policies, published_sha256
from calopd.rundir.policy_publisher import FilePublisher
from calopd.rundir.policy_transport import PolicyPublisher
from calopd.rundir.tensor_files import TensorStream
from calopd.transport.queue import TEACHER, Arrival, Queue, arrived_indices
from services.learner import prometheus
from services.learner.batching import Assignment, DynamicBatcher, PolicyWanted, assignments
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

    def __init__(self, config: Config, queue: Queue, heartbeat: Heartbeat | None = None) -> None:
        self._config, self._queue, self._run_dir = config, queue, config.run_dir
        self._lock = single_learner(self._run_dir)
        # Where the lock does not hold, on some network file systems, the queue refuses the learner that came first.
        queue.lead(socket.gethostname())
        self._publisher: PolicyPublisher = FilePublisher(config.policies, queue.run, config.learner.snapshot_every)
        self._sha256: dict[int, str] = {}
        """Policy version -> digest of the weights that were published."""
        save_with_run(config)
        self._tokenizer = load_tokenizer(config.student.path)
        self._shape = load_shape(config.student.path)
        self._batchers: dict[int, DynamicBatcher] = {}
        self._versions: dict[int, set[int]] = {}
        """Open step -> the only policies that its tickets may be sampled from."""
        prometheus.run_info.labels(config.method.name, config.student.path, config.teacher.path).set(1)
        prometheus.steps_wanted.set(config.run.steps)
        volumes = {"run": self._run_dir.path, "policies": config.policies}
        register_resource_collector(config.queue.url, queue.run, volumes)
        self._status = Status(config.run.name, config.run.steps, heartbeat)
        self._evaluations = Evaluations(config, queue, self._run_dir, self._status)
        serve_status(self._status, config.learner.port)

    def enter(self, phase: Phase, progress: str = "") -> None:
        """Show what the learner is doing."""
        self._status.enter(phase, progress)

    def latest_checkpoint(self) -> Iterator[Path | None]:
        """Look for the checkpoint to resume from; the last item is it."""
        checkpoints.remove_incomplete(self._run_dir)
        yield from checkpoints.newest_intact(self._run_dir)

    def resume(self, record: checkpoints.Record, found: Path | None) -> None:
        """Drop what files and Redis hold beyond the checkpoint: only the checkpoint counts."""
        step = record.step
        keep_lines_before(self._run_dir.trajectories, step)
        if self._run_dir.teacher.exists():  # a server that lost its data must not pin another teacher
            self._queue.pin(TEACHER, self._run_dir.teacher.read_bytes())
        self._trackers = start_trackers(self._config, self._queue.run, step)
        run = self._config.run
        # Steps that the policy of the checkpoint had opened stay open. Later ones are repeated, but a deterministic run
        # reaches the same weights again, so their trajectories stay valid.
        end = run.steps if run.deterministic else step + run.max_staleness + 1
        valid = {step_batch(number) for number in range(step, end)}
        for batch in self._queue.open_batches():
            if not batch.startswith(EVALUATION) and batch not in valid:
                self._queue.release_batch(batch)
        self._sha256 |= {int(version): sha256 for version, sha256 in record.policies.items()}
        if retried := self._queue.retry_dead_letters():
            log.warning("%d dead letters are issued again: %s", len(retried), ", ".join(t.id for t in retried[:5]))
        if run.deterministic:
            self._forget_lost_policies(step)
        self._evaluations.resume(step)
        self._status.step = self._status.checkpoint_step = step
        prometheus.checkpoint_time.set(found.stat().st_mtime if found else time.time())

    def _forget_lost_policies(self, resumed: int) -> None:
        """Forget policies before the checkpoint that are lost, if a step that was opened early still needs them."""
        staleness, expected = self._config.run.max_staleness, self._config.learner.trajectories
        for step in range(resumed, resumed + staleness):
            version, arrivals = max(0, step - staleness), self._queue.arrivals(step_batch(step), block_seconds=0.0)
            there = published_sha256(self._config.policies, version) == self._sha256.get(version)
            if len(arrived_indices(arrivals)) < expected and not (there and is_intact(self._config.policies, version)):
                self._sha256.pop(version, None)

    def publish(self, version: int, weights: TensorStream) -> str:
        """Publish and announce a policy; returns its sha256."""
        start = time.monotonic()
        published = self._publisher.publish(version, weights)
        if self._sha256.setdefault(version, published.sha256) != published.sha256:
            log.warning("policy %d has other weights than before the restart: its responses are sampled again", version)
            self._sha256[version] = published.sha256
        self._queue.announce_policy(version, published.sha256)
        seconds = time.monotonic() - start
        prometheus.publish_seconds.set(seconds)
        prometheus.publish_bytes.set(published.bytes)
        kind = "changes" if published.is_delta else "whole"
        log.info("policy %d is published: %s, %.3f MB in %.2f s", version, kind, published.bytes / 1e6, seconds)
        return published.sha256

    def _answer_requests(self, items: Iterator[T]) -> Iterator[T | PolicyWanted]:
        """Pass on what comes at least every second; in between, publish again what a rollout cannot read."""
        for item in items:
            for version in self._queue.requested_policies():
                if self._publisher.publish_whole(version):
                    log.warning("policy %d is published again, whole: a rollout could not read it", version)
                elif version == max(self._sha256, default=-1):
                    log.warning("policy %d is gathered and published again: a rollout could not read it", version)
                    yield PolicyWanted(version)
                else:
                    self._give_up_policy(version)
            yield item

    def _give_up_policy(self, version: int) -> None:
        """Nobody has the weights of a policy any more: what waits for it must not wait for ever."""
        log.error("policy %d was asked for by a rollout, but is not kept", version)
        self._evaluations.drop(version)
        needing = [step for step, versions in self._versions.items() if version in versions]
        if needing:
            raise PolicyError(
                f"policy {version} is lost or damaged, and step {needing[0] + 1} is to be sampled from it. The learner "
                "starts again from its checkpoint and has the step sampled from the policy of the checkpoint"
            )

    def evaluate(self, version: int) -> None:
        """Open the evaluation of a published policy if one is due, and remove the policies that nobody needs."""
        self._evaluations.collect()
        self._evaluations.open(version)
        # Tickets that were issued early may still need the policies of the last `max_staleness` versions.
        keep = max(self._config.learner.keep_policies, self._config.run.max_staleness + 1)
        prune_policies(self._config.policies, version, keep, self._evaluations.needed)

    def open_step(self, step: int, tickets: list[Ticket], ranks: int) -> Iterator[Assignment | PolicyWanted | None]:
        """Issue the tickets of a step; then assign its trajectories to the ranks as they arrive."""
        tickets = [self._with_policy(ticket) for ticket in tickets]
        issued = self._queue.open_batch(step_batch(step), tickets)
        log.info("step %d is open: %d tickets%s", step + 1, len(tickets), "" if issued else ", issued before")
        if not issued:
            self._withdraw_unknown(step, tickets)
        self._versions[step] = {ticket.policy_version for ticket in tickets if not ticket.newer_policy}
        self._batchers[step] = DynamicBatcher(
            len(tickets),
            self._config.learner.micro_batch_tokens,
            ranks=ranks,
            deterministic=self._config.run.deterministic,
            cost=self._cost,
        )
        rounds = assignments(self._queue, step_batch(step), tickets, self._batchers[step], self._is_of_policy)
        return self._answer_requests(rounds)

    def _with_policy(self, ticket: Ticket) -> Ticket:
        """The ticket with the digest of its policy; if that policy is lost, for the newest one."""
        version = ticket.policy_version if ticket.policy_version in self._sha256 else max(self._sha256)
        return replace(ticket, policy_version=version, policy_sha256=self._sha256[version])

    def _withdraw_unknown(self, step: int, tickets: list[Ticket]) -> None:
        """Have those sampled again at once whose policy came after the checkpoint: its weights are not known here."""
        arrivals = self._queue.arrivals(step_batch(step), block_seconds=0.0)
        newest = {arrival.index: arrival for arrival in arrivals}.values()
        unknown = {arrival.index for arrival in newest if arrival.tokens > 0 and not self._is_of_policy(arrival)}
        if unknown:
            log.warning(
                "%d results of step %d are of policies after the checkpoint: sampled again", len(unknown), step + 1
            )
            self._queue.reissue(step_batch(step), [ticket for ticket in tickets if ticket.index in unknown])

    def _is_of_policy(self, arrival: Arrival) -> bool:
        """Whether a result was sampled from the weights that this learner knows by their version."""
        return self._sha256.get(arrival.policy_version) == arrival.policy_sha256

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
        self._versions.pop(measured.step, None)
        for row in sorted(measured.result.shown, key=lambda row: row["index"]):
            tokens = [self._tokenizer.decode([i]) for i in row["response_ids"]]
            append_line(self._run_dir.trajectories, {"step": line["step"], **row, "tokens": tokens})
        if not self._run_dir.teacher.exists() and (pinned := self._queue.pinned(TEACHER)) is not None:
            write_text(self._run_dir.teacher, pinned.decode())
        self._status.finish_step(line)
        tell_progress()
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

    def finish_evaluations(self) -> Iterator[PolicyWanted | None]:
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

    def latest_checkpoint(self) -> Iterator[Path | None]:
        return iter(())

    def resume(self, record: checkpoints.Record, found: Path | None) -> None: ...

    def publish(self, version: int, weights: TensorStream) -> str:
        weights.drain()
        return ""

    def evaluate(self, version: int) -> None: ...

    def open_step(self, step: int, tickets: list[Ticket], ranks: int) -> Iterator[Assignment | PolicyWanted | None]:
        return iter(())

    def all_rounds(self, step: int) -> list[Assignment]:
        return []

    def newest_evaluation(self) -> tuple[int, float] | None:
        return None

    def report(self, measured: MeasuredStep) -> None: ...

    def checkpoint_durable(self, durable: Durable) -> None: ...

    def finish_evaluations(self) -> Iterator[PolicyWanted | None]:
        return iter(())

    def export(self, student: Student, weights: TensorStream) -> None:
        weights.drain()

    def finish(self, record: checkpoints.Record) -> None: ...
