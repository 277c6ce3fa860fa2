"""What Prometheus sees of the learner."""

from typing import Any

from prometheus_client import Counter, Gauge

busy_seconds = Counter("calopd_learner_busy_seconds", "Seconds in which the learner computed")
tokens = Counter("calopd_learner_tokens", "Response tokens learnt from")
trajectories = Counter("calopd_learner_trajectories", "Trajectories learnt from")
missing = Counter("calopd_learner_missing_trajectories", "Tickets that became dead letters")
checkpoint_time = Gauge("calopd_learner_checkpoint_timestamp_seconds", "When the last checkpoint was written")

evaluation_accuracy = Gauge(
    "calopd_learner_evaluation_accuracy_ratio", "Held-out accuracy of the policy last evaluated"
)
evaluation_version = Gauge("calopd_learner_evaluation_policy_version", "The policy last evaluated")
evaluations_skipped = Counter(
    "calopd_learner_evaluations_skipped", "Policies not evaluated because the evaluation before was still under way"
)

STEP_GAUGES = {
    "step": Gauge("calopd_learner_step", "Optimizer steps done"),
    "policy_version": Gauge("calopd_learner_policy_version", "Version of the published policy"),
    "retained_ratio": Gauge("calopd_learner_retained_discrepancy_ratio", "sum|A_Cal| / sum|A_OPD| of the last step"),
    "zero_ratio": Gauge("calopd_learner_zero_advantage_ratio", "Share of tokens with a zero advantage"),
    "region_width": Gauge("calopd_learner_region_width_nats", "Mean width of the TSD region"),
    "clamped_share": Gauge("calopd_learner_clamped_ratio", "Share of tokens whose advantage was clamped"),
    "loss": Gauge("calopd_learner_loss", "Loss of the last step"),
    "grad_norm": Gauge("calopd_learner_gradient_norm", "Gradient norm before clipping"),
    "lr": Gauge("calopd_learner_learning_rate", "Learning rate of the last step"),
    "entropy": Gauge("calopd_learner_student_entropy_nats", "Mean entropy of the student"),
    "accuracy": Gauge("calopd_learner_rollout_accuracy_ratio", "Share of right answers among the rollouts"),
    "response_length_mean": Gauge("calopd_learner_response_length_tokens", "Mean response length"),
    "truncated_share": Gauge("calopd_learner_truncated_ratio", "Share of responses cut at the limit"),
    "logprob_mismatch": Gauge("calopd_learner_logprob_mismatch_nats", "Mean |rollout - learner| log-probability"),
    "staleness": Gauge("calopd_learner_staleness_versions", "Mean age of the trajectories in policy versions"),
    "top16_token_overlap": Gauge("calopd_learner_top16_token_overlap_ratio", "Top-16 token overlap with the teacher"),
    "top16_mass_overlap": Gauge("calopd_learner_top16_mass_overlap_ratio", "Top-16 mass overlap with the teacher"),
    "seconds": Gauge("calopd_learner_step_seconds", "Wall time of the last step"),
}


def record(line: dict[str, Any]) -> None:
    """Show a line of metrics.jsonl."""
    for name, gauge in STEP_GAUGES.items():
        if line.get(name) is not None:
            gauge.set(line[name])
    tokens.inc(line["tokens"])
    trajectories.inc(line["tickets_used"])
    missing.inc(line["tickets_missing"])
