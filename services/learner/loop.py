"""The training loop: open a step, learn from its trajectories as they arrive, checkpoint, publish, open the next."""

import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from calopd.config import Config, save_with_run
from calopd.core.errors import TooFewTrajectories
from calopd.core.losses import denominator
from calopd.core.step_metrics import MeasuredStep, step_line
from calopd.core.types import MethodSettings, Ticket, Trajectory
from calopd.data.problems import load_problems
from calopd.models.tokenizers import load_tokenizer
from calopd.rundir.files import append_line, ensure_run_id, keep_lines_before, single_learner
from calopd.rundir.policies import prune_policies, publish_policy
from calopd.rundir.recorded_ratios import recorded_ratios
from calopd.transport.redis_queue import Queue, connect
from services.learner import checkpoint, prometheus
from services.learner.accumulator import Accumulator
from services.learner.evaluations import Evaluations
from services.learner.export import export_model, write_summary
from services.learner.feed import Cutter, Round, rounds
from services.learner.queue_watch import watch
from services.learner.ranks import Ranks
from services.learner.reference import frozen_reference
from services.learner.schedule import learning_rate
from services.learner.status import Status, serve_status
from services.learner.step_facts import merge_facts
from services.learner.student import full_weights, load_student, shard
from services.learner.tickets import step_batch, step_tickets
from services.learner.trackers import start_trackers

log = logging.getLogger(__name__)


class Learner:
    def __init__(self, config: Config, ranks: Ranks) -> None:
        self.config, self.ranks = config, ranks
        self.run_dir = config.run_dir
        torch.manual_seed(config.run.seed)
        settings = config.learner
        self.problems = load_problems(config.data.train)
        self.student = load_student(config.student.path, settings)
        shard(self.student, ranks.mesh, settings.compute_dtype)
        self.optimizer = torch.optim.AdamW(
            [parameter for parameter in self.student.parameters() if parameter.requires_grad],
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
        )
        self.record = checkpoint.Record()
        run_id = ranks.tell(ensure_run_id(self.run_dir) if ranks.first else None)
        self.queue = Queue(connect(config.queue.url), run_id)
        self.status = Status(config.run.name, config.run.steps)
        self.recorded: list[float] = []
        if config.method.recorded_run is not None:
            self.recorded = recorded_ratios(config.method.recorded_run, config.method.method.recorded, config.run.steps)
        self.reference = frozen_reference(config, ranks, self.student) if config.method.method.uses_reference else None
        self._clock, self._idle = time.monotonic(), 0.0
        if ranks.first:
            self._lock = single_learner(self.run_dir)
            save_with_run(config)
            self.tokenizer = load_tokenizer(config.student.path)
            prometheus.run_info.labels(config.method.name, config.student.path, config.teacher.path).set(1)
            prometheus.steps_wanted.set(config.run.steps)
            watch(config.queue.url, run_id, {"run": self.run_dir, "policies": config.policies})
            self.evaluations = Evaluations(config, self.queue, self.run_dir, self.status)
            serve_status(self.status, settings.port)

    def run(self) -> None:
        """Train to the end, from the last checkpoint where there is one."""
        self._resume()
        self._publish()
        self._clock = time.monotonic()
        for step in range(self.record.step, self.config.run.steps):
            self._step(step)
        if self.ranks.first:
            self.evaluations.wait()
        self.status.phase = "exporting"
        weights = full_weights(self.student)
        if self.ranks.first:
            export_model(self.run_dir / "model", self.student, weights, self.tokenizer)
            write_summary(self.run_dir, self.config, self.record)
            self.trackers.close()
        self.status.phase = "done"

    def _resume(self) -> None:
        """Take up the last checkpoint; what it contains is the truth, whatever Redis and the files say beyond it."""
        found = self.ranks.tell(checkpoint.latest(self.run_dir) if self.ranks.first else None)
        if found is not None:
            self.record = checkpoint.load(found, self.student, self.optimizer)
            log.info("resumed at step %d from %s", self.record.step, found)
        if not self.ranks.first:
            return
        keep_lines_before(self.run_dir / "trajectories.jsonl", self.record.step)
        self.trackers = start_trackers(self.config, self.queue.run, self.record.step)
        here = step_batch(self.record.step)
        for batch in self.queue.open_batches():
            # Steps beyond are redone. In fixed order they come to the same weights, and their trajectories stay good.
            if batch.startswith("step-") and (batch < here or (batch > here and not self.config.run.deterministic)):
                self.queue.release_batch(batch)
        self.evaluations.resume(self.record.step)
        self.status.step = self.record.step
        prometheus.checkpoint_time.set(found.stat().st_mtime if found else time.time())

    def _publish(self) -> None:
        """Publish the student as policy `record.step`, announce it, and have it evaluated where that is due."""
        weights = full_weights(self.student)
        if self.ranks.first:
            version, keep = self.record.step, self.config.learner.keep_policies
            sha256 = publish_policy(self.config.policies, version, weights, self.queue.run)
            self.evaluations.collect()
            prune_policies(self.config.policies, version, keep, self.evaluations.needed)
            self.queue.announce_policy(version, sha256)
            self.evaluations.open(version)

    def _step(self, step: int) -> None:
        batch, settings = step_batch(step), self.config.learner
        tickets = step_tickets(self.config, self.problems, self.queue.run, step)
        self.status.phase, self.status.progress = "waiting for trajectories", f"0/{len(tickets)}"
        accumulator, dead, idle = self._accumulate(step, tickets)
        self.status.phase = "optimizer step"
        result, *others = self.ranks.gather(accumulator.result)
        for other in others:
            result.merge(other)
        sums, used = result.sums, sorted(result.used)
        self._check_missing(step, len(tickets) - len(used))
        rate = learning_rate(
            step, steps=self.config.run.steps, peak=settings.learning_rate, warmup_steps=settings.warmup_steps
        )
        kept = (int(sums.get("kept_trajectories")), int(sums.get("kept_tokens")))
        divisor = max(1, denominator(*kept, self.config.method.aggregation))
        norm = self._optimize(divisor, rate) if kept[1] else 0.0

        self.record.step = step + 1
        self.record.issued += len(tickets)
        self.record.used[batch] = used
        self.record.sampler = result.sampler or self.record.sampler
        # A step's clock runs from line to line: saving and publishing count for the step after.
        seconds, self._clock = time.monotonic() - self._clock, time.monotonic()
        self.record.seconds += seconds
        if self.ranks.first:
            measured = MeasuredStep(
                result=result,
                step=step,
                epoch=step * (len(tickets) // settings.samples) // len(self.problems),
                learning_rate=rate,
                gradient_norm=norm,
                denominator=divisor,
                missing=dead,
                seconds=seconds,
                idle_seconds=idle,
                evaluation=self.evaluations.newest(),
            )
            # Before the checkpoint: a line of a step that is not in it is dropped on resume, a missing one never comes.
            self._tell(step_line(measured, accumulator.probes), result.shown)
        self._finish(step)

    def _tell(self, line: dict[str, Any], shown: list[dict[str, Any]]) -> None:
        self.trackers.record(line)
        for row in sorted(shown, key=lambda row: row["index"]):
            tokens = [self.tokenizer.decode([i]) for i in row["response_ids"]]
            append_line(self.run_dir / "trajectories.jsonl", {"step": line["step"], **row, "tokens": tokens})
        self.status.finish_step(line)
        log.info(
            "step %d: retained %.3f, zero %.3f, accuracy %.3f, loss %.4f, %.1f s (idle %.1f)",
            line["step"], line["retained_ratio"], line["zero_ratio"], line["accuracy"], line["loss"], line["seconds"],
            line["seconds_idle"],
        )  # fmt: skip

    def _finish(self, step: int) -> None:
        """Checkpoint where one is due, publish the new policy, and let go of what the checkpoint contains."""
        settings = self.config.learner
        due = (step + 1) % settings.checkpoint_every == 0 or step + 1 == self.config.run.steps
        if due:
            self.status.phase = "checkpointing"
            checkpoint.save(self.run_dir, self.student, self.optimizer, self.record, settings.keep_checkpoints)
            prometheus.checkpoint_time.set(time.time())
        self.status.phase = "publishing"
        self._publish()
        if due and self.ranks.first:
            for done in range(max(0, step + 1 - settings.checkpoint_every), step + 1):
                self.queue.release_batch(step_batch(done))

    def _check_missing(self, step: int, missing: int) -> None:
        """A step that lacks too much is no step: say why, and stop before the optimizer."""
        limit = self.config.learner.max_missing_ratio * self.config.learner.trajectories
        if missing and missing >= limit:
            reasons = Counter(error for ticket, error in self.queue.dead_letters() if ticket.batch == step_batch(step))
            why = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
            raise TooFewTrajectories(
                f"step {step} lacks {missing} of {self.config.learner.trajectories} trajectories, more than "
                f"learner.max_missing_ratio = {self.config.learner.max_missing_ratio} allows: {why}"
            )

    def _accumulate(self, step: int, tickets: list[Ticket]) -> tuple[Accumulator, int, float]:
        """Forward and backward over the whole batch, as it arrives; dead letters, and seconds of waiting."""
        section, ranks = self.config.method, self.ranks
        accumulator = Accumulator(
            self.student,
            section,
            self._method_settings(step),
            ranks.device,
            world_size=ranks.size,
            reference=self.reference,
        )
        cutter = Cutter(
            len(tickets), self.config.learner.micro_batch_tokens, deterministic=self.config.run.deterministic
        )
        feed = self._feed(step, tickets, cutter)
        shown = self._shown_tickets(step)
        plan = None
        if section.method.plan is not None:
            # The plan needs all of them; what it must know is found as they arrive.
            waiting, facts = [], []
            for trajectories in feed:
                waiting.append(trajectories)
                facts.append(accumulator.look(trajectories)) if trajectories else accumulator.look_at_nothing()
            plan = section.method.plan(
                merge_facts([f for part in ranks.gather(facts) for f in part]), accumulator.settings
            )
            feed = iter(waiting)
        for trajectories in feed:
            start = time.monotonic()
            self.status.phase = "learning"
            accumulator.add(trajectories, plan, shown) if trajectories else accumulator.add_nothing()
            prometheus.busy_seconds.inc(time.monotonic() - start)
            self.status.phase = "waiting for trajectories"
            self.status.progress = f"{len(accumulator.result.used)}/{len(tickets)}"
        return accumulator, len(cutter.dead), self._idle

    def _feed(self, step: int, tickets: list[Ticket], cutter: Cutter) -> Iterator[list[Trajectory]]:
        """This rank's trajectories, round by round; [] where others have some and this rank has none."""
        batch, ranks = step_batch(step), self.ranks
        plan = rounds(self.queue, batch, tickets, cutter, ranks.size) if ranks.first else iter(())
        self._idle = 0.0
        while True:
            start = time.monotonic()
            over, round_ = ranks.tell(_next(plan) if ranks.first else None)
            self._idle += time.monotonic() - start
            if over:
                return
            if round_ is not None:
                yield self.queue.results(batch, round_[ranks.rank])

    def _method_settings(self, step: int) -> MethodSettings:
        """The method's numbers at this step, with the recorded run's ratio where it follows one."""
        ratio = self.recorded[step] if self.recorded else 1.0
        return replace(self.config.method.settings, recorded_ratio=ratio, seed=self.config.run.seed, step=step)

    def _optimize(self, divisor: int, rate: float) -> float:
        """Divide the summed gradient by the step's denominator, clip, step; the norm before clipping."""
        parameters = [p for p in self.student.parameters() if p.grad is not None]
        for parameter in parameters:
            parameter.grad.mul_(1.0 / divisor)  # type: ignore[union-attr]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.config.learner.gradient_clip)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if not torch.isfinite(norm):
            raise RuntimeError(
                f"the gradient norm is {norm.item()}: the step is not taken, and nothing was saved of it"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def _shown_tickets(self, step: int) -> int:
        steps = self.config.run.steps
        return self.config.learner.show_trajectories if step in (0, steps // 2, steps - 1) else 0


def _next(plan: Iterator[Round | None]) -> tuple[bool, Round | None]:
    """Whether the batch is over, and the next round where there is one already."""
    for round_ in plan:
        return False, round_
    return True, None
