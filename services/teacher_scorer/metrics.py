"""What Prometheus sees of a teacher."""

from prometheus_client import Counter, Gauge, Histogram

tokens = Counter("calopd_teacher_tokens", "Response tokens scored", ["context"])
busy_seconds = Counter("calopd_teacher_busy_seconds", "Seconds in which the engine computed")
padding_tokens = Counter("calopd_teacher_padding_tokens", "Positions computed for padding")
forward_tokens = Counter("calopd_teacher_forward_tokens", "Positions computed, padding included")
batch_sequences = Histogram(
    "calopd_teacher_batch_sequences", "Sequences in a batch", buckets=[1, 2, 4, 8, 16, 32, 64, 128]
)
wait_seconds = Histogram("calopd_teacher_wait_seconds", "Seconds from arrival to the forward pass")
waiting = Gauge("calopd_teacher_waiting_requests", "Requests accepted and not answered yet")
refused = Counter("calopd_teacher_refused_requests", "Requests refused", ["reason"])
canary_healthy = Gauge("calopd_teacher_canary_healthy", "1 where the last canary was as on the first day")
canary_deviation = Gauge("calopd_teacher_canary_deviation_nats", "Largest deviation of the last canary")
canary_time = Gauge("calopd_teacher_canary_timestamp_seconds", "When the canary was last scored")
