"""Everything that is measured in a step, in one table.

A metric is one entry of `METRICS`: its key in metrics.jsonl, its unit, its meaning, how it is computed from the sums of
the step, and the chart that shows it. The step's line, Prometheus, TensorBoard, Weights & Biases, the report, Grafana
and docs/metrics.md are derived from the table. Sums are over all tokens or trajectories of the step, on all ranks;
ratios are formed once, at the end.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from calopd.core import paper_results
from calopd.core.activity import Role, busiest
from calopd.core.calibration import ratio_of_sums
from calopd.core.step_result import MeasuredStep

Unit = Literal["ratio", "nats", "tokens", "seconds", "versions", "count", ""]
Number = float | int | None

PROBE = "{probe}"
"""Placeholder in the key of a metric that is measured for every probe."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the report and a panel of the Grafana dashboard; metrics that name the same chart share it."""

    title: str
    group: str
    note: str = ""
    """One sentence below the title; empty = the meaning of its only metric."""
    paper: tuple[float, float] | None = None
    """First and last value of the paper's Cal-OPD run (eval probes, relaxation 5); shown for Cal-OPD only."""
    stacked: bool = False
    logarithmic: bool = False
    runbook: str = ""
    """The section of docs/runbook.md that explains it."""


@dataclass(frozen=True, slots=True)
class Metric:
    key: str
    """Key in metrics.jsonl, tag in TensorBoard, name in Weights & Biases."""
    unit: Unit
    meaning: str
    value: Callable[[MeasuredStep], Number]
    """None = not measured in this step."""
    chart: Chart
    label: str = ""
    """Its name in a chart with several metrics."""
    name: str = ""
    """Last part of its Prometheus name, if that is not the key and the unit."""

    @property
    def prometheus(self) -> str:
        """`calopd_learner_<thing>_<unit>`; the probe is a label, not a part of the name."""
        thing = self.key.removesuffix(f"_{PROBE}")
        unit = self.unit if self.unit not in ("", "count") and not thing.endswith(self.unit) else ""
        return "calopd_learner_" + (self.name or "_".join(part for part in (thing, unit) if part))

    @property
    def per_probe(self) -> bool:
        return PROBE in self.key

    def keys_in(self, line: Iterable[str]) -> dict[str, str]:
        """Label -> key of what a line has of this metric: one entry, or one per probe with the probe as its label."""
        if not self.per_probe:
            return {self.label: self.key} if self.key in line else {}
        prefix = self.key.removesuffix(PROBE)
        return {key.removeprefix(prefix): key for key in line if key.startswith(prefix)}


def _mean(name: str, over: str) -> Callable[[MeasuredStep], Number]:
    return lambda step: step.mean(name, over)


def _error(name: str, over: str) -> Callable[[MeasuredStep], Number]:
    return lambda step: step.result.sums.standard_error(name, over)


def _count(name: str) -> Callable[[MeasuredStep], Number]:
    return lambda step: int(step.result.sums.get(name))


def _retained(step: MeasuredStep) -> float:
    return ratio_of_sums(step.result.sums.get("kept"), step.result.sums.get("raw"))


RETAINED = Chart("Retained discrepancy", "Calibration", paper=paper_results.RETAINED, runbook="Signal collapse")
ZERO = Chart("Zero-advantage tokens", "Calibration", paper=paper_results.ZERO, runbook="Signal collapse")
WIDTH = Chart("Region width", "Calibration", runbook="No calibration")
DEVIATION = Chart("Mean deviation by probe", "Calibration", runbook="No calibration")
CHANGED = Chart(
    "Clamped and sign-flipped tokens",
    "Calibration",
    "Clamped: |A| exceeded the clamp. Sign-flipped: A against the sign of lT - lS, which Cal-OPD never does.",
)
FORWARD_KL = Chart("Forward KL", "Calibration")
GATE = Chart("Open gates", "Calibration")
ACCURACY = Chart("Accuracy", "Student", "Of the rollouts of the step, and of the policy last evaluated.")
LENGTH = Chart("Response length", "Student", "Tokens per response.")
ENDINGS = Chart("How responses end", "Student", "Cut at rollout.max_tokens, and answered after the reasoning.")
ENTROPY = Chart("Entropy", "Student")
OVERLAP = Chart(
    "Overlap with the teacher's top 16",
    "Student",
    "Tokens: share of the two top-16 sets in common. Mass: probability that both give to the common ones.",
)
OVERLAP_ERROR = Chart(
    "Standard error of the overlap",
    "Student",
    "Over the step's measured trajectories (`method.overlap_share`). A smaller difference between two runs is noise.",
)
LOSS = Chart("Loss", "Optimization")
NORM = Chart("Gradient norm", "Optimization", logarithmic=True, runbook="Gradient norm")
RATE = Chart("Learning rate", "Optimization")
MISMATCH = Chart("Log-probability mismatch", "Optimization", logarithmic=True, runbook="Mismatch")
STALENESS = Chart("Staleness", "Optimization", runbook="Staleness")
IMPORTANCE = Chart(
    "Importance ratio", "Optimization", "Of tokens that an older policy sampled; there are none with max_staleness = 0."
)
PROGRESS = Chart("Progress", "Progress", "Step, epoch, policy published after the step, and policy last evaluated.")
TICKETS = Chart("Tickets", "Progress", "A ticket becomes a trajectory or a dead letter; a method may leave some out.")
TOKENS = Chart("Tokens per step", "Progress", "Response tokens of the step; a method may leave some out of the loss.")
SECONDS = Chart(
    "Seconds by role",
    "Time",
    "Busy seconds of each role, and idle seconds of the learner. Roles overlap: the sum may exceed the wall time.",
    stacked=True,
)
WALL = Chart("Seconds per step", "Time", "Wall time, and busy seconds of the busiest role: the closer, the better.")


def _role_chart(role: Role) -> Chart:
    note = "Mean over the processes of the role; the three add up to the step. docs/metrics.md defines them."
    return Chart(f"Seconds of a {ROLES[role]}", "Time", note, stacked=True)


def _role_metrics(role: Role) -> tuple[Metric, ...]:
    chart = ROLE_CHARTS[role]
    return tuple(
        Metric(f"seconds_{role}_{state}", "seconds", meaning[role], _role_value(role, state), chart, state,
               name=f"step_{role}_{state}_seconds")
        for state, meaning in STATES.items()
    )  # fmt: skip


def _role_value(role: Role, state: str) -> Callable[[MeasuredStep], Number]:
    return lambda step: getattr(step.roles[role], state) if role in step.roles else None


ROLES: dict[Role, str] = {"rollout": "rollout", "teacher": "teacher", "learner": "learner rank"}
"""Role -> one of its processes."""
STATES: dict[str, dict[Role, str]] = {
    "busy": {
        "rollout": "Seconds in which a rollout sampled, for steps and evaluations; mean over the replicas",
        "teacher": "Seconds in which a teacher computed; mean over the replicas",
        "learner": "Seconds of forward, backward and optimizer step; mean over the ranks",
    },
    "waiting": {
        "rollout": "Seconds in which a rollout had tickets and sampled nothing: scores or a policy were outstanding",
        "teacher": "Seconds in which a teacher had requests and did not compute",
        "learner": "Seconds in which a rank waited for trajectories, published a policy or copied a checkpoint",
    },
    "idle": {
        "rollout": "Seconds in which a rollout had no tickets",
        "teacher": "Seconds in which a teacher had no requests",
        "learner": "Seconds of passes that a rank made without trajectories, because other ranks had some",
    },
}
"""State -> role -> meaning; calopd/core/activity.py defines the states."""
ROLE_CHARTS = {role: _role_chart(role) for role in ROLES}
FIRST_TOKEN = Chart("From optimizer step to first token", "Time")

GROUPS = ("Calibration", "Student", "Optimization", "Time", "Progress")
"""Groups of charts, in the order of the page."""

METRICS: tuple[Metric, ...] = (
    Metric("step", "", "Number of the step, from 0", lambda s: s.step, PROGRESS, "step"),
    Metric("epoch", "", "Pass over the training problems, from 0", lambda s: s.epoch, PROGRESS, "epoch"),
    Metric("policy_version", "", "Policy published after the step", lambda s: s.step + 1, PROGRESS, "policy"),
    Metric("retained_ratio", "ratio",
           "Retained share of the discrepancy: sum|A| / sum|A_OPD| over all tokens; a dropped token has A = 0",
           _retained, RETAINED, name="retained_discrepancy_ratio"),
    Metric("zero_ratio", "ratio", "Share of tokens with zero advantage: the student is inside the teacher's region",
           _mean("zero", "tokens"), ZERO, name="zero_advantage_ratio"),
    Metric("region_width", "nats", "Mean of U - L over the tokens", _mean("region_width", "tokens"), WIDTH),
    Metric(f"deviation_{PROBE}", "nats", "Mean of lT(c) - lT; below 0, the probe c makes the responses less likely",
           _mean(f"deviation_{PROBE}", "tokens"), DEVIATION, name="self_deviation_nats"),
    Metric("clamped_share", "ratio", "Share of tokens whose advantage was clamped",
           _mean("clamped", "tokens"), CHANGED, "clamped", name="clamped_ratio"),
    Metric("sign_flip_share", "ratio", "Share of tokens whose advantage has the opposite sign of A_OPD",
           _mean("sign_flips", "tokens"), CHANGED, "sign-flipped", name="sign_flip_ratio"),
    Metric("tokens_kept", "count", "Tokens in the loss", _count("kept_tokens"), TOKENS, "in the loss"),
    Metric("trajectories_kept", "count", "Trajectories in the loss", _count("kept_trajectories"), TICKETS,
           "in the loss"),
    Metric("forward_kl", "nats", "Mean forward KL of the tokens whose gate is open (EOPD)",
           _mean("forward_kl", "gate_open"), FORWARD_KL),
    Metric("gate_open_share", "ratio", "Share of tokens at which the teacher's entropy exceeds the threshold (EOPD)",
           _mean("gate_open", "tokens"), GATE, name="gate_open_ratio"),
    Metric("accuracy", "ratio", "Share of the step's responses with the right answer",
           lambda s: s.share("correct"), ACCURACY, "rollouts", name="rollout_accuracy_ratio"),
    Metric("evaluation_accuracy", "ratio", "Accuracy on the held-out problems, of the policy last evaluated",
           lambda s: s.evaluation[1] if s.evaluation else None, ACCURACY, "held-out"),
    Metric("evaluation_policy_version", "", "The policy last evaluated",
           lambda s: s.evaluation[0] if s.evaluation else None, PROGRESS, "evaluated policy"),
    Metric("response_length_mean", "tokens", "Mean response length",
           lambda s: sum(s.result.lengths) / max(1, len(s.result.lengths)), LENGTH, "mean",
           name="response_length_tokens"),
    Metric("response_length_p50", "tokens", "Median response length", lambda s: s.percentile(50), LENGTH, "median"),
    Metric("response_length_p95", "tokens", "95th percentile of the response lengths",
           lambda s: s.percentile(95), LENGTH, "95th percentile"),
    Metric("truncated_share", "ratio", "Share of responses cut at the limit",
           lambda s: s.share("truncated"), ENDINGS, "cut", name="truncated_ratio"),
    Metric("answered_after_think_share", "ratio", "Share of responses that answer after the end of the reasoning",
           lambda s: s.share("after_think"), ENDINGS, "answered after thinking", name="answered_after_think_ratio"),
    Metric("entropy", "nats", "Mean entropy of the student over the whole vocabulary",
           _mean("entropy", "tokens"), ENTROPY, name="student_entropy_nats"),
    Metric("top16_token_overlap", "ratio", "|Top16_T & Top16_S| / 16",
           _mean("token_overlap", "overlap_trajectories"), OVERLAP, "tokens"),
    Metric("top16_mass_overlap", "ratio", "Sum over the common top-16 tokens of min(p_T, p_S)",
           _mean("mass_overlap", "overlap_trajectories"), OVERLAP, "mass"),
    Metric("top16_token_overlap_error", "ratio",
           "Standard error of the token overlap over the measured trajectories of the step",
           _error("token_overlap", "overlap_trajectories"), OVERLAP_ERROR, "tokens"),
    Metric("top16_mass_overlap_error", "ratio",
           "Standard error of the mass overlap over the measured trajectories of the step",
           _error("mass_overlap", "overlap_trajectories"), OVERLAP_ERROR, "mass"),
    Metric("loss", "", "Policy-gradient surrogate; its size depends on the advantages",
           lambda s: s.result.sums.get("loss") / s.denominator, LOSS),
    Metric("grad_norm", "", "Gradient norm before clipping", lambda s: s.gradient_norm, NORM, name="gradient_norm"),
    Metric("lr", "", "Learning rate of the optimizer step", lambda s: s.learning_rate, RATE, name="learning_rate"),
    Metric("logprob_mismatch", "nats",
           "Mean |rollout - learner| log-probability of tokens that are not stale; about .02 in bfloat16, 0 in float32",
           _mean("mismatch", "fresh_tokens"), MISMATCH),
    Metric("staleness", "versions", "Mean age of the response tokens in policy versions; 0 = strictly on-policy",
           _mean("staleness", "tokens"), STALENESS),
    Metric("importance_ratio", "ratio", "Mean importance ratio of the stale tokens, after truncation",
           _mean("importance_ratio", "stale_tokens"), IMPORTANCE, "mean"),
    Metric("importance_truncated_share", "ratio", "Share of the stale tokens whose importance ratio was truncated",
           _mean("importance_truncated", "stale_tokens"), IMPORTANCE, "truncated", name="importance_truncated_ratio"),
    Metric("tokens", "count", "Response tokens of the step", lambda s: sum(s.result.lengths), TOKENS, "all",
           name="step_tokens"),
    Metric("tickets_used", "count", "Tickets whose trajectory was used", lambda s: len(s.result.used), TICKETS, "used"),
    Metric("tickets_missing", "count", "Tickets that became dead letters", lambda s: s.missing, TICKETS, "missing"),
    Metric("seconds", "seconds", "Wall time of the step", lambda s: s.seconds, WALL, "step", name="step_seconds"),
    Metric("seconds_busiest", "seconds", "Busy seconds of the busiest role, mean over its processes",
           lambda s: busiest(s.roles) or None, WALL, "busiest role", name="step_busiest_seconds"),
    Metric("seconds_rollout", "seconds", "Busy seconds of all sampling engines for the step's trajectories",
           lambda s: s.result.sums.get("seconds_rollout"), SECONDS, "rollout", name="step_rollout_seconds"),
    Metric("seconds_teacher", "seconds", "Busy seconds of all teachers for the step's trajectories",
           lambda s: s.result.sums.get("seconds_teacher"), SECONDS, "teacher", name="step_teacher_seconds"),
    Metric("seconds_learner", "seconds", "Seconds in which the learner did not wait",
           lambda s: s.seconds - s.idle_seconds, SECONDS, "learner", name="step_learner_seconds"),
    Metric("seconds_idle", "seconds", "Seconds in which the learner waited for trajectories",
           lambda s: s.idle_seconds, SECONDS, "learner idle", name="step_idle_seconds"),
    *_role_metrics("rollout"),
    *_role_metrics("teacher"),
    *_role_metrics("learner"),
    Metric("seconds_to_first_token", "seconds",
           "Seconds from an optimizer step to the first token of its policy, of the newest policy in the step",
           lambda s: s.first_token_seconds, FIRST_TOKEN, name="first_token_seconds"),
)  # fmt: skip


def step_line(step: MeasuredStep, probes: Sequence[str] = ()) -> dict[str, Number]:
    """The line of a step in metrics.jsonl: every metric, those of a probe once per probe; None = not measured."""
    line: dict[str, Number] = {}
    for metric in METRICS:
        if metric.per_probe:
            keys = (metric.key.replace(PROBE, probe) for probe in probes)
            line |= {key: step.mean(key, "tokens") for key in keys}
        else:
            line[metric.key] = metric.value(step)
    return line


def charts() -> dict[str, dict[Chart, list[Metric]]]:
    """Group -> chart -> its metrics."""
    found: dict[str, dict[Chart, list[Metric]]] = {group: {} for group in GROUPS}
    for metric in METRICS:
        found.setdefault(metric.chart.group, {}).setdefault(metric.chart, []).append(metric)
    return found
