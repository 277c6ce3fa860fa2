"""docs/metrics.md: every metric of a step, and the other Prometheus metrics of the services."""

from prometheus_client import REGISTRY, Metric

from calopd.core import step_metrics
from docs.generators.markdown import code, table

INTRODUCTION = """\
# Metrics

<!-- Generated from the code by `make docs`. Do not edit: change the metrics in the code. -->

## Metrics of a step

The learner records these once per step. They are declared in one table, `calopd/core/step_metrics.py`; every place that
shows them is derived from it:

| Place | Name of a metric | Where |
| --- | --- | --- |
| metrics.jsonl | key | the run's directory, one line per step; `null` = not measured in this step |
| Prometheus | Prometheus name | `/metrics` of the learner; absent = not measured in the last step |
| Report | chart | `report.html` in the run's directory |
| Grafana | chart | dashboard "calopd: Calibration" |
| TensorBoard | key | `tensorboard/` in the run's directory, if `tracking.trackers` names `tensorboard` |
| Weights & Biases | key | `wandb/` in the run's directory, if `tracking.trackers` names `wandb` |

The terminal, logs, pages, TensorBoard and Weights & Biases count steps from 1. `step` in metrics.jsonl and in
Prometheus counts from 0, as do the names of batches: `step-000012` is step 13.

```toml
[tracking]
trackers = ["tensorboard", "wandb"]
mode = "offline"    # Weights & Biases: upload later with `wandb sync <run>/wandb/offline-run-*`
```

TensorBoard and Weights & Biases need libraries, which `make setup` installs;
otherwise `pip install -e '.[tensorboard]'` and `pip install -e '.[wandb]'`.
Trackio is well maintained, but not offered: its current release requires pillow < 13, which conflicts with the version
that the samplers are pinned to. A tracker is one file in `calopd/tracking/` and one line in its `registry.py`.

A metric that is measured for every probe has one key per probe; in Prometheus the probe is the label `probe`.
Prometheus metrics of the learner and of the rollouts have the label `run`.

Each process is at any moment in one of three states. `seconds_<role>_<state>` are the mean over the processes of the
role and add up to `seconds`:

- **busy**: it computes. A rollout samples (for evaluations, too), a teacher scores, a learner rank runs forward,
  backward and optimizer step. Collectives of the ranks, in which one may wait for another, are part of their passes.
- **waiting**: it has work but does not compute. A rollout has tickets whose scores or policy are outstanding, a learner
  rank waits for trajectories, publishes a policy or copies a checkpoint.
- **idle**: it has no work. A learner rank is idle in the passes that it makes without trajectories, because the other
  ranks have some.

`seconds_busiest` is the largest of the three busy times: the time that the step would take if everything else
overlapped with it. Rollouts and teachers send their clock with every result: their seconds of a step are those between
the last results of two steps. A replica that sent nothing in a step counts as idle if `rollout.replicas`,
`teacher.replicas` or `teacher.addresses` names it, else not at all.
"""

SERVICES = {
    "calopd_learner_": ("Learner", "Metrics that are not metrics of a step."),
    "calopd_rollout_": ("Rollout", "Metrics of every replica."),
    "calopd_teacher_": ("Teacher", "Metrics of every replica."),
}


def page() -> str:
    parts = [INTRODUCTION]
    for group, charts in step_metrics.charts().items():
        rows = [
            (code(metric.key), metric.unit, metric.meaning, code(metric.prometheus), chart.title)
            for chart, metrics in charts.items()
            for metric in metrics
        ]
        parts.append(f"### {group}\n\n" + table(("Key", "Unit", "Meaning", "Prometheus name", "Chart"), rows))
    parts.append("## Other metrics of the services\n\nOnly Prometheus has these.\n")
    families = service_families()
    for prefix, (title, note) in SERVICES.items():
        others = [
            (code(family.name + ("_total" if family.type == "counter" else "")), family.type, family.documentation)
            for name, family in sorted(families.items())
            if name.startswith(prefix)
        ]
        parts.append(f"### {title}\n\n{note}\n\n" + table(("Name", "Type", "Meaning"), others))
    return "\n".join(parts)


def service_families() -> dict[str, Metric]:
    """Name -> Prometheus metric that a service declares by hand."""
    from calopd.tracking import prometheus_tracker  # noqa: F401
    from calopd.transport import teacher_client  # noqa: F401
    from services.learner import prometheus as learner  # noqa: F401
    from services.learner.resource_collector import ResourceCollector
    from services.rollout import prometheus as rollout  # noqa: F401
    from services.teacher_scorer import prometheus as teacher  # noqa: F401

    nowhere = ResourceCollector("redis://127.0.0.1:1/0", "none", {})
    of_a_step = {metric.prometheus for metric in step_metrics.METRICS}
    return {
        family.name: family
        for family in [*REGISTRY.collect(), *nowhere.collect()]
        if family.name.startswith(tuple(SERVICES)) and family.name not in of_a_step
    }
