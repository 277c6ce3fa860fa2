"""Prometheus metrics of a teacher."""

from prometheus_client import Counter, Gauge, Histogram

tokens = Counter("calopd_teacher_tokens", "Response tokens scored", ["context"])
busy_seconds = Counter("calopd_teacher_busy_seconds", "Seconds in which the engine computed")
phase_seconds = Counter(
    "calopd_teacher_phase_seconds", "Seconds of requests by phase: wait, forward (body), head, encode", ["phase"]
)
forward_tokens = Counter("calopd_teacher_forward_tokens", "Positions computed by the body")
reused_tokens = Counter(
    "calopd_teacher_reused_tokens", "Positions not computed because another sequence has the same prefix"
)
padding_tokens = Counter("calopd_teacher_padding_tokens", "Positions that attention computed for padding")
batch_sequences = Histogram(
    "calopd_teacher_batch_sequences", "Sequences in a batch", buckets=[1, 2, 4, 8, 16, 32, 64, 128]
)
batch_fill = Histogram(
    "calopd_teacher_batch_fill_ratio",
    "Tokens of a batch over teacher.batch_tokens",
    buckets=[0.1, 0.25, 0.5, 0.75, 0.9, 1, 2, 4],
)
wait_seconds = Histogram("calopd_teacher_wait_seconds", "Seconds from arrival to the forward pass")
waiting = Gauge("calopd_teacher_waiting_requests", "Requests accepted and not answered yet")
refused = Counter("calopd_teacher_refused_requests", "Requests refused", ["reason"])
canary_healthy = Gauge(
    "calopd_teacher_canary_healthy", "1 if the canary's scores are those of the teacher's start, else 0"
)
canary_deviation = Gauge(
    "calopd_teacher_canary_deviation_nats", "Median deviation of the canary's last scores from those of the start"
)
canary_time = Gauge("calopd_teacher_canary_timestamp_seconds", "Unix time at which the canary was last scored")

for phase in ("wait", "forward", "head", "encode"):
    phase_seconds.labels(phase)
