"""Prometheus metrics of a rollout replica."""

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = [0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1_200, 2_400]

tokens = Counter("calopd_rollout_tokens", "Response tokens sampled")
busy_seconds = Counter("calopd_rollout_busy_seconds", "Seconds in which the engine sampled")
sampling = Gauge("calopd_rollout_sampling_requests", "Responses being sampled")
scoring = Gauge("calopd_rollout_scoring_requests", "Responses waiting for the teacher")
trajectories = Counter(
    "calopd_rollout_trajectories", "Tickets finished, by outcome: committed, duplicate or dead", ["outcome"]
)
policy_version = Gauge("calopd_rollout_policy_version", "Version of the policy that is sampled from")
policy_seconds = Histogram("calopd_rollout_policy_load_seconds", "Seconds to verify and load a policy")
policy_requests = Counter(
    "calopd_rollout_policy_requests", "Policies that the learner was asked for again: missing or damaged"
)
cut_solutions = Counter(
    "calopd_rollout_cut_solutions", "Contexts whose solution lost its beginning, to fit data.max_context_tokens"
)
failures = Counter("calopd_rollout_failures", "Failed attempts at a ticket; each is retried", ["reason"])
sample_seconds = Histogram(
    "calopd_rollout_sample_seconds", "Seconds from the claim of a ticket to the end of its response", buckets=_SECONDS
)
score_seconds = Histogram(
    "calopd_rollout_score_seconds", "Seconds to score a response in all contexts, retries included", buckets=_SECONDS
)

for _outcome in ("committed", "duplicate", "dead"):
    trajectories.labels(_outcome)  # at 0 from the start: the first one is an increase
