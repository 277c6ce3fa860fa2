"""The training loop: open a step, learn from its trajectories as they arrive, checkpoint, publish, open the next."""

import logging
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from calopd.config import Config
from calopd.data import load_problems
from calopd.losses import denominator
from calopd.queue import Queue, connect
from calopd.rundir import append_line, ensure_run_id, keep_lines_before
from calopd.tokens import load_tokenizer
from calopd.weights import prune_policies, publish_policy
from services.learner import checkpoint, metrics
from services.learner.evaluation import evaluate
from services.learner.export import export_model, write_summary
from services.learner.feed import Cutter, Round, rounds
from services.learner.micro_batch import Accumulator
from services.learner.ranks import Ranks
from services.learner.schedule import learning_rate
from services.learner.status import Status, serve_status
from services.learner.student import full_weights, load_student, shard
from services.learner.tickets import step_batch, step_tickets

log = logging.getLogger(__name__)


class Learner:
    def __init__(self, config: Config, ranks: Ranks) -> None:
        self.config, self.ranks = config, ranks
        self.run_dir = config.run_dir
        torch.manual_seed(config.run.seed)
        settings = config.learner
        self.problems = load_problems(config.data.train)
        self.student = load_student(
            config.student.path, chunk=settings.chunk, recompute_activations=settings.recompute_activations
        )
        shard(self.student, ranks.mesh, settings.compute_dtype)
        self.optimizer = torch.optim.AdamW(
            self.student.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
        )
        self.record = checkpoint.Record()
        run_id = ranks.tell(ensure_run_id(self.run_dir) if ranks.first else None)
        self.queue = Queue(connect(config.queue.url), run_id)
        self.status = Status(config.run.name, config.run.steps)
        if ranks.first:
            self.tokenizer = load_tokenizer(config.student.path)
            serve_status(self.status, settings.port)

    def run(self) -> None:
        """Train to the end, from the last checkpoint where there is one."""
        started = time.monotonic()
        self._resume()
        self._publish()
        before = self.record.seconds
        self._evaluate("before", only_at=0)
        for step in range(self.record.step, self.config.run.steps):
            self._step(step)
            self.record.seconds = before + time.monotonic() - started
        self._evaluate("after", only_at=self.config.run.steps)
        self.record.seconds = before + time.monotonic() - started
        self.status.phase = "exporting"
        weights = full_weights(self.student)
        if self.ranks.first:
            export_model(self.run_dir / "model", self.config.student.path, self.student, weights, self.tokenizer)
            write_summary(self.run_dir, self.config, self.record)
        self.status.phase = "done"

    def _resume(self) -> None:
        found = self.ranks.tell(checkpoint.latest(self.run_dir) if self.ranks.first else None)
        if found is not None:
            self.record = checkpoint.load(found, self.student, self.optimizer)
            log.info("resumed at step %d from %s", self.record.step, found)
        if self.ranks.first:
            for name in ("metrics.jsonl", "trajectories.jsonl"):
                keep_lines_before(self.run_dir / name, self.record.step)
            self.status.step = self.record.step
            self.status.evaluations = self.record.evaluations

    def _publish(self) -> None:
        """Publish the student as policy `record.step` and announce it."""
        weights = full_weights(self.student)
        if self.ranks.first:
            version, keep = self.record.step, self.config.learner.keep_policies
            publish_policy(self.run_dir, version, weights, self.queue.run)
            prune_policies(self.run_dir, version, keep)
            self.queue.announce_policy(version)

    def _evaluate(self, label: str, only_at: int) -> None:
        """Answer the held-out problems with the current policy; kept with the run's record."""
        if not self.config.evaluation.problems or self.record.step != only_at or label in self.record.evaluations:
            return
        if self.ranks.first:
            self.status.phase = f"evaluating {label}"
            self.record.evaluations[label] = evaluate(self.config, self.queue, label, self.record.step, self.status)
            log.info("evaluation %s: %s", label, self.record.evaluations[label]["accuracy"])
        self.record.evaluations = self.ranks.tell(self.record.evaluations)
        self._save()
        self.status.evaluations = self.record.evaluations
        if self.ranks.first:
            self.queue.release_batch(f"eval-{label}")

    def _save(self) -> None:
        settings = self.config.learner
        checkpoint.save(self.run_dir, self.student, self.optimizer, self.record, settings.keep_checkpoints)
        metrics.checkpoint_time.set(time.time())

    def _step(self, step: int) -> None:
        start = time.monotonic()
        batch, settings = step_batch(step), self.config.learner
        self.status.phase, self.status.progress = "waiting for trajectories", f"0/{settings.trajectories}"
        if self.ranks.first:
            self.queue.open_batch(batch, step_tickets(self.config, self.problems, self.queue.run, step))
        accumulator, dead, idle = self._accumulate(batch, self._shown_tickets(step))
        self.status.phase = "optimizer step"
        parts = self.ranks.gather((accumulator.sums, accumulator.lengths, accumulator.used, accumulator.shown))
        sums = parts[0][0]
        for other in parts[1:]:
            sums.merge(other[0])
        lengths = [length for part in parts for length in part[1]]
        used = sorted(index for part in parts for index in part[2])
        rate = learning_rate(
            step, steps=self.config.run.steps, peak=settings.learning_rate, warmup_steps=settings.warmup_steps
        )
        divisor = denominator(len(used), sum(lengths), self.config.method.loss_agg_mode)
        norm = self._optimize(divisor, rate) if used else 0.0

        self.record.step = step + 1
        self.record.issued += settings.trajectories
        self.record.used[batch] = used
        self.record.sampler = self.ranks.tell(accumulator.sampler or self.record.sampler)
        due = (step + 1) % settings.checkpoint_every == 0 or step + 1 == self.config.run.steps
        self.status.phase = "checkpointing"
        if due:
            self._save()
        self.status.phase = "publishing"
        self._publish()
        seconds = time.monotonic() - start
        if self.ranks.first:
            if due:
                for done in range(max(0, step + 1 - settings.checkpoint_every), step + 1):
                    self.queue.release_batch(step_batch(done))
            line = {
                "step": step,
                **sums.ratios(),
                "loss": sums.sums.get("loss", 0.0) / max(1, divisor),
                "grad_norm": norm,
                "lr": rate,
                **_shape(lengths, sums.sums),
                "policy_version": step + 1,
                "tokens": sum(lengths),
                "tickets_used": len(used),
                "tickets_missing": dead,
                "seconds": seconds,
                "seconds_rollout": sums.sums.get("seconds_rollout", 0.0),
                "seconds_teacher": sums.sums.get("seconds_teacher", 0.0),
                "seconds_learner": seconds - idle,
                "seconds_idle": idle,
            }
            append_line(self.run_dir / "metrics.jsonl", line)
            for shown in sorted((row for part in parts for row in part[3]), key=lambda row: row["index"]):
                tokens = [self.tokenizer.decode([i]) for i in shown["response_ids"]]
                append_line(self.run_dir / "trajectories.jsonl", {"step": step, **shown, "tokens": tokens})
            metrics.record(line)
            metrics.busy_seconds.inc(seconds - idle)
            self.status.finish_step(line)
            log.info(
                "step %d: retained %.3f, zero %.3f, accuracy %.3f, loss %.4f, %.1f s (idle %.1f)",
                step, line["retained_ratio"], line["zero_ratio"] or 0, line["accuracy"], line["loss"], seconds, idle,
            )  # fmt: skip

    def _accumulate(self, batch: str, show_below: int) -> tuple[Accumulator, int, float]:
        """Forward and backward over the whole batch, as it arrives; dead letters, and seconds of waiting."""
        settings, ranks = self.config.learner, self.ranks
        accumulator = Accumulator(self.student, self.config.method, ranks.device, ranks.size)
        cutter = Cutter(settings.trajectories, settings.micro_batch_tokens, deterministic=self.config.run.deterministic)
        plan = rounds(self.queue, batch, cutter, ranks.size) if ranks.first else iter(())
        idle = 0.0
        while True:
            start = time.monotonic()
            over, round_ = ranks.tell(_next(plan) if ranks.first else None)
            idle += time.monotonic() - start
            if over:
                return accumulator, len(cutter.dead), idle
            if round_ is None:
                continue
            trajectories = self.queue.results(batch, round_.micro_batches[ranks.rank])
            self.status.phase = "learning"
            if trajectories:
                accumulator.add(trajectories, show_below)
            else:
                accumulator.add_nothing()
            self.status.phase = "waiting for trajectories"
            self.status.progress = f"{len(accumulator.used)}/{settings.trajectories}"

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


def _shape(lengths: list[int], sums: dict[str, float]) -> dict[str, Any]:
    """What the step's responses were like."""
    count = max(1.0, sums.get("trajectories", 0.0))
    return {
        "response_length_mean": float(np.mean(lengths)) if lengths else 0.0,
        "response_length_p50": float(np.percentile(lengths, 50)) if lengths else 0.0,
        "response_length_p95": float(np.percentile(lengths, 95)) if lengths else 0.0,
        "accuracy": sums.get("correct", 0.0) / count,
        "answered_after_think_share": sums.get("after_think", 0.0) / count,
        "truncated_share": sums.get("truncated", 0.0) / count,
        "staleness": sums.get("staleness", 0.0) / count,
    }
