"""What Prometheus sees of the learner."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

busy_seconds = Counter("calopd_learner_busy_seconds", "Seconds in which the learner computed")
tokens = Counter("calopd_learner_tokens", "Response tokens learnt from")
trajectories = Counter("calopd_learner_trajectories", "Trajectories learnt from")
missing = Counter("calopd_learner_missing_trajectories", "Tickets that became dead letters")
checkpoint_time = Gauge("calopd_learner_checkpoint_timestamp_seconds", "When the last checkpoint was written")
phase_seconds = Counter("calopd_learner_phase_seconds", "Seconds spent, by what the learner was doing", ["phase"])
run_info = Gauge("calopd_learner_run_info", "1; what the run trains and how", ["method", "student", "teacher"])
steps_wanted = Gauge("calopd_learner_steps_wanted", "Optimizer steps of the whole run")
self_deviation = Gauge("calopd_learner_self_deviation_nats", "Mean deviation of the teacher under a probe", ["probe"])
evaluation_accuracy = Gauge(
    "calopd_learner_evaluation_accuracy_ratio", "Held-out accuracy of the policy last evaluated"
)
evaluation_version = Gauge("calopd_learner_evaluation_policy_version", "The policy last evaluated")
evaluations_skipped = Counter(
    "calopd_learner_evaluations_skipped", "Policies not evaluated because the evaluation before was still under way"
)

STEP_METRICS = {
    "step": ("calopd_learner_step", "Optimizer steps done"),
    "policy_version": ("calopd_learner_policy_version", "Version of the published policy"),
    "retained_ratio": ("calopd_learner_retained_discrepancy_ratio", "sum|A_Cal| / sum|A_OPD| of the last step"),
    "zero_ratio": ("calopd_learner_zero_advantage_ratio", "Share of tokens with a zero advantage"),
    "region_width": ("calopd_learner_region_width_nats", "Mean width of the TSD region"),
    "sign_flip_share": ("calopd_learner_sign_flip_ratio", "Share of tokens whose advantage changed its sign"),
    "clamped_share": ("calopd_learner_clamped_ratio", "Share of tokens whose advantage was clamped"),
    "loss": ("calopd_learner_loss", "Loss of the last step"),
    "grad_norm": ("calopd_learner_gradient_norm", "Gradient norm before clipping"),
    "lr": ("calopd_learner_learning_rate", "Learning rate of the last step"),
    "entropy": ("calopd_learner_student_entropy_nats", "Mean entropy of the student"),
    "accuracy": ("calopd_learner_rollout_accuracy_ratio", "Share of right answers among the rollouts"),
    "response_length_mean": ("calopd_learner_response_length_tokens", "Mean response length"),
    "response_length_p95": ("calopd_learner_response_length_p95_tokens", "95th percentile of response lengths"),
    "truncated_share": ("calopd_learner_truncated_ratio", "Share of responses cut at the limit"),
    "logprob_mismatch": ("calopd_learner_logprob_mismatch_nats", "Mean |rollout - learner| log-probability"),
    "staleness": ("calopd_learner_staleness_versions", "Mean age of the trajectories in policy versions"),
    "top16_token_overlap": ("calopd_learner_top16_token_overlap_ratio", "Top-16 token overlap with the teacher"),
    "top16_mass_overlap": ("calopd_learner_top16_mass_overlap_ratio", "Top-16 mass overlap with the teacher"),
    "seconds": ("calopd_learner_step_seconds", "Wall time of the last step"),
}
"""Key of a line of metrics.jsonl -> name and meaning."""


class LastStep(Collector):
    """Gauges of the last step. What no step has measured yet is not there, rather than 0."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for key, (name, meaning) in STEP_METRICS.items():
            if key in self.values:
                yield GaugeMetricFamily(name, meaning, value=self.values[key])


last_step = LastStep()
REGISTRY.register(last_step)


def record(line: dict[str, Any]) -> None:
    """Show a line of metrics.jsonl."""
    shown = {**line, "step": line["step"] + 1}
    last_step.values = {key: shown[key] for key in STEP_METRICS if shown.get(key) is not None}
    for name, value in line.items():
        if name.startswith("deviation_") and value is not None:
            self_deviation.labels(name.removeprefix("deviation_")).set(value)
    tokens.inc(line["tokens"])
    trajectories.inc(line["tickets_used"])
    missing.inc(line["tickets_missing"])
