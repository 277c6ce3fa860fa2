"""Prometheus metrics of the learner that are not metrics of a step; those are in calopd/core/step_metrics.py."""

from prometheus_client import Counter, Gauge

busy_seconds = Counter("calopd_learner_busy_seconds", "Seconds in which the learner computed")
checkpoint_time = Gauge("calopd_learner_checkpoint_timestamp_seconds", "Unix time of the last checkpoint")
checkpoint_seconds = Gauge(
    "calopd_learner_checkpoint_seconds", "Seconds from the start of the last checkpoint until it was durable"
)
overdue_steps = Gauge(
    "calopd_learner_checkpoint_overdue_steps", "Steps since the last durable checkpoint beyond learner.checkpoint_every"
)
publish_seconds = Gauge("calopd_learner_publish_seconds", "Seconds to gather, write and announce the last policy")
publish_bytes = Gauge("calopd_learner_publish_bytes", "Bytes that were written for the last policy")
phase_seconds = Counter("calopd_learner_phase_seconds", "Seconds spent, by phase of the learner", ["phase"])
run_info = Gauge(
    "calopd_learner_run_info",
    "Always 1; method, student and teacher of the run as labels",
    ["method", "student", "teacher"],
)
steps_wanted = Gauge("calopd_learner_steps_wanted", "Optimizer steps of the whole run")
evaluations_skipped = Counter(
    "calopd_learner_evaluations_skipped", "Policies not evaluated because the previous evaluation was still running"
)
