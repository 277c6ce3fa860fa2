"""What Prometheus sees of a rollout replica."""

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = [0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1_200, 2_400]

tokens = Counter("calopd_rollout_tokens", "Response tokens sampled")
busy_seconds = Counter("calopd_rollout_busy_seconds", "Seconds in which the engine sampled")
sampling = Gauge("calopd_rollout_sampling_requests", "Responses being written")
scoring = Gauge("calopd_rollout_scoring_requests", "Responses waiting for the teacher")
trajectories = Counter("calopd_rollout_trajectories", "Tickets done, by what became of them", ["outcome"])
policy_version = Gauge("calopd_rollout_policy_version", "Policy that is being sampled from")
policy_seconds = Histogram("calopd_rollout_policy_load_seconds", "Seconds to verify and load a policy")
failures = Counter("calopd_rollout_failures", "Attempts at a ticket that failed and will be repeated", ["reason"])
sample_seconds = Histogram(
    "calopd_rollout_sample_seconds", "Seconds from a claim to the whole response", buckets=_SECONDS
)
score_seconds = Histogram("calopd_rollout_score_seconds", "Seconds until the teacher had scored it", buckets=_SECONDS)

for _outcome in ("committed", "duplicate", "dead"):
    trajectories.labels(_outcome)  # at 0 from the start: the first one is an increase
