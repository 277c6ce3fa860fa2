"""Pipeline: throughput, latencies and failures, by role and replica."""

from deploy.monitoring.grafana.panel import REPLICA, RUN, TEACHER, Panel, Row, quantile

PIPELINE = (
    Row(
        "Throughput",
        (
            Panel(
                "Tokens per second, by role",
                "Response tokens. The teacher counts a token once per context: three times with Cal-OPD.",
                {
                    "teacher {{context}}":
                        f"sum by (context) (rate(calopd_teacher_tokens_total{{{TEACHER}}}[$__rate_interval]))",
                    "rollout": f"sum(rate(calopd_rollout_tokens_total{{{REPLICA}}}[$__rate_interval]))",
                    "learner": f"sum(rate(calopd_learner_tokens_total{{{REPLICA}}}[$__rate_interval]))",
                },
            ),
            Panel(
                "Busy", "Share of time in which a replica computed; the rest it waited.",
                {"{{role}} {{instance}}": f"calopd:busy_ratio:rate5m{{{TEACHER}}}"},
                unit="percentunit", runbook="Role idle",
            ),
            Panel(
                "Step time", "Wall time of the last step.",
                {"{{run}}": f"calopd_learner_step_seconds{{{RUN}}}"}, unit="s",
            ),
            Panel(
                "Learner by phase", "Share of time.",
                {"{{phase}}": f"sum by (phase) (rate(calopd_learner_phase_seconds_total{{{RUN}}}[5m]))"},
                unit="percentunit", stacked=True,
            ),
            Panel(
                "Teachers by phase", "Seconds per second, over all replicas.",
                {"{{phase}}": f"sum by (phase) (rate(calopd_teacher_phase_seconds_total{{{TEACHER}}}[5m]))"},
                stacked=True,
            ),
            Panel(
                "Teacher batches", "How full batches are, and the share of positions that is padding or was reused.",
                {
                    "fill": f"sum(rate(calopd_teacher_batch_fill_ratio_sum{{{TEACHER}}}[5m])) / "
                    f"sum(rate(calopd_teacher_batch_fill_ratio_count{{{TEACHER}}}[5m]))",
                    "padding": f"sum(rate(calopd_teacher_padding_tokens_total{{{TEACHER}}}[5m])) / "
                    f"sum(rate(calopd_teacher_forward_tokens_total{{{TEACHER}}}[5m]))",
                    "reused": f"sum(rate(calopd_teacher_reused_tokens_total{{{TEACHER}}}[5m])) / "
                    f"(sum(rate(calopd_teacher_forward_tokens_total{{{TEACHER}}}[5m])) + "
                    f"sum(rate(calopd_teacher_reused_tokens_total{{{TEACHER}}}[5m])))",
                },
                unit="percentunit",
            ),
        ),
    ),
    Row(
        "Queue and latencies",
        (
            Panel(
                "Tickets", "Not done yet: waiting, and claimed by a rollout.",
                {"{{run}} {{state}}": f"calopd_learner_queue_tickets{{{RUN}}}"}, stacked=True, runbook="Queue stalled",
            ),
            Panel(
                "Oldest ticket", "Its age; about as long as the longest response takes.",
                {"{{run}}": f"calopd_learner_queue_oldest_seconds{{{RUN}}}"}, unit="s", runbook="Queue stalled",
            ),
            Panel(
                "In flight", "Responses being written, waiting for the teacher, and requests that a teacher holds.",
                {
                    "{{instance}} sampling": f"calopd_rollout_sampling_requests{{{REPLICA}}}",
                    "{{instance}} scoring": f"calopd_rollout_scoring_requests{{{REPLICA}}}",
                    "{{instance}} at the teacher": f"calopd_teacher_waiting_requests{{{TEACHER}}}",
                },
            ),
            Panel(
                "Writing a response", "From the claim to the last token.",
                {
                    "{{instance}} p50": quantile(0.5, "calopd_rollout_sample_seconds", "instance", REPLICA),
                    "{{instance}} p95": quantile(0.95, "calopd_rollout_sample_seconds", "instance", REPLICA),
                },
                unit="s",
            ),
            Panel(
                "Scoring a response", "As a rollout measures it, all contexts and retries included.",
                {
                    "{{instance}} p50": quantile(0.5, "calopd_rollout_score_seconds", "instance", REPLICA),
                    "{{instance}} p95": quantile(0.95, "calopd_rollout_score_seconds", "instance", REPLICA),
                },
                unit="s",
            ),
            Panel(
                "Waiting at the teacher", "From arrival to the forward pass; the autoscaler follows the mean.",
                {
                    "{{instance}} p95": quantile(0.95, "calopd_teacher_wait_seconds", "instance", TEACHER),
                    "mean": "calopd:teacher_wait_seconds:mean5m",
                },
                unit="s", runbook="Teacher refuses",
            ),
            Panel(
                "Policy version, by replica", "All rollouts follow the learner within seconds.",
                {
                    "{{instance}} rollout": f"calopd_rollout_policy_version{{{REPLICA}}}",
                    "{{run}} learner": f"calopd_learner_policy_version{{{RUN}}}",
                },
                runbook="Mismatch",
            ),
            Panel(
                "Loading a policy", "Verify, load, clear the prefix cache; p95.",
                {"{{instance}}": quantile(0.95, "calopd_rollout_policy_load_seconds", "instance", REPLICA)}, unit="s",
            ),
            Panel(
                "Trajectories", "Per minute, by the outcome of the ticket.",
                {"{{outcome}}": f"60 * sum by (outcome) (rate(calopd_rollout_trajectories_total{{{REPLICA}}}[5m]))"},
                runbook="Dead letters",
            ),
        ),
    ),
    Row(
        "Failures",
        (
            Panel(
                "Failed attempts, by reason", "Attempts at a ticket; each is retried. In 15 minutes.",
                {
                    "{{reason}}": f"sum by (reason) (increase(calopd_rollout_failures_total{{{REPLICA}}}[15m])) "
                    "or vector(0)"
                },
                runbook="Queue stalled",
            ),
            Panel(
                "Retried calls to the teacher, by reason", "In 15 minutes.",
                {
                    "{{reason}}": f"sum by (reason) (increase(calopd_rollout_teacher_retries_total{{{REPLICA}}}[15m])) "
                    "or vector(0)"
                },
                runbook="Teacher refuses",
            ),
            Panel(
                "Refused requests, by reason", "In 15 minutes.",
                {
                    "{{reason}}": "sum by (reason) "
                    f"(increase(calopd_teacher_refused_requests_total{{{TEACHER}}}[15m])) or vector(0)"
                },
                runbook="Teacher refuses",
            ),
            Panel(
                "Dead letters and missing trajectories",
                "Tickets in the dead-letter list, and trajectories that the steps lacked because of them.",
                {
                    "{{run}} dead letters": f"calopd_learner_dead_letters{{{RUN}}}",
                    "{{run}} missing": f"calopd_learner_missing_trajectories_total{{{RUN}}}",
                },
                width=6, runbook="Dead letters",
            ),
            Panel(
                "Canary", "Largest deviation of a teacher from its scores at the start, in nats.",
                {"{{instance}}": f"calopd_teacher_canary_deviation_nats{{{TEACHER}}}"},
                width=6, runbook="Teacher canary",
            ),
            Panel(
                "Age of the canary", "Since it was last scored.",
                {"{{instance}}": f"time() - calopd_teacher_canary_timestamp_seconds{{{TEACHER}}}"},
                unit="s", width=6, runbook="Teacher canary",
            ),
            Panel(
                "Teachers and Redis", "1 = the teacher serves, as its canary is right; 1 = Redis answers.",
                {
                    "{{instance}} serves": f"calopd_teacher_canary_healthy{{{TEACHER}}}",
                    "{{run}} Redis": f"calopd_learner_queue_up{{{RUN}}}",
                },
                width=6, runbook="Queue down",
            ),
        ),
    ),
    Row(
        "Machines",
        (
            Panel(
                "Free disk space", "Of the volumes of the run and of the policies.",
                {"{{run}} {{volume}}": f"calopd:disk_free:ratio{{{RUN}}}"}, unit="percentunit", runbook="Disk",
            ),
            Panel(
                "Age of the last checkpoint", "Work that would be repeated after a crash.",
                {"{{run}}": f"calopd:checkpoint_age:seconds{{{RUN}}}"}, unit="s", runbook="Checkpoint age",
            ),
            Panel(
                "Main memory", "Resident, by process.",
                {"{{job}} {{instance}}": f"process_resident_memory_bytes{{{TEACHER}}}"},
                unit="bytes", runbook="Restarts",
            ),
            Panel(
                "Running for", "Since the last start.",
                {"{{job}} {{instance}}": f"time() - process_start_time_seconds{{{TEACHER}}}"},
                unit="s", runbook="Restarts",
            ),
            Panel(
                "Scraped", "1 = Prometheus reaches it.",
                {"{{job}} {{instance}}": f"up{{{TEACHER}}}"}, runbook="Restarts",
            ),
            Panel("CPU", "Cores in use, by process.", {"{{job}} {{instance}}":
                f"rate(process_cpu_seconds_total{{{TEACHER}}}[$__rate_interval])"}),
        ),
    ),
)  # fmt: skip
