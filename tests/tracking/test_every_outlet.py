"""A metric that is added to the table appears in every outlet, with no other change."""

import pytest
import tomli_w

from calopd.core import step_metrics
from calopd.core.step_metrics import METRICS, PROBE, Chart, Metric, step_line
from calopd.core.step_result import MeasuredStep, StepResult, StepSums
from calopd.pages.report import write_report
from calopd.rundir.files import append_line
from calopd.rundir.layout import RunDir
from calopd.tracking.metrics_page import metrics_of_run
from calopd.tracking.prometheus_tracker import PrometheusTracker
from calopd.tracking.tracker import TrackedRun
from deploy.monitoring.grafana.dashboards import dashboards  # type: ignore[attr-defined]  # a folder has its name
from docs.generators import metrics as metrics_page
from tests.tracking.read_back import report_steps

PROBES = ("eval+", "eval-")


def line_of_a_step() -> dict:
    step = MeasuredStep(
        result=StepResult(StepSums()), step=0, epoch=0, learning_rate=0.1, gradient_norm=1.0, denominator=1, missing=0,
        seconds=2.0, idle_seconds=0.5,
    )  # fmt: skip
    return step_line(step, PROBES)


def test_a_line_has_the_keys_of_the_table():
    expected = [key.replace(PROBE, probe) for key in (m.key for m in METRICS) for probe in _probes(key)]
    assert list(line_of_a_step()) == expected


def _probes(key: str) -> tuple[str, ...]:
    return PROBES if PROBE in key else ("",)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Metric:
    chart = Chart("Weights & norms", "Added", logarithmic=True, runbook="Gradient norm")
    metric = Metric("weight_norm", "ratio", "Norm of the weights over the first one", lambda s: 0.1 + s.seconds, chart)
    monkeypatch.setattr(step_metrics, "METRICS", (*METRICS, metric))
    return metric


def test_an_added_metric_is_in_the_line_and_in_prometheus(added, tmp_path):
    line = line_of_a_step()
    assert line["weight_norm"] == 2.1
    PrometheusTracker(TrackedRun(directory=RunDir(tmp_path), run_id="r-1", name="r")).record(line)
    page = metrics_of_run("r").decode()
    assert 'calopd_learner_weight_norm_ratio{run="r"} 2.1' in page
    assert "# HELP calopd_learner_weight_norm_ratio Norm of the weights over the first one" in page


def test_an_added_metric_is_in_the_report(added, tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.config.write_text(tomli_w.dumps({"run": {"name": "r"}, "method": {"name": "opd"}}))
    append_line(run_dir.metrics, line_of_a_step())
    page = write_report(run_dir).read_text()
    assert report_steps(page)[1]["weight_norm"] == 2.1
    assert "<h2>Added</h2>" in page
    assert "<h3>Weights &amp; norms</h3>" in page


def test_an_added_metric_is_in_grafana(added):
    page = dashboards()["calibration"]
    (panel,) = (panel for panel in page["panels"] if panel["title"] == "Weights & norms")
    (target,) = panel["targets"]
    assert target["expr"] == 'calopd_learner_weight_norm_ratio{run=~"$run"}'
    assert panel["fieldConfig"]["defaults"]["unit"] == "percentunit"
    assert panel["fieldConfig"]["defaults"]["custom"]["scaleDistribution"]["type"] == "log"
    assert panel["links"][0]["title"] == "Runbook: Gradient norm"
    assert "Added" in [panel["title"] for panel in page["panels"] if panel["type"] == "row"]


def test_an_added_metric_is_in_the_documentation(added):
    assert "| `weight_norm` | ratio | Norm of the weights over the first one |" in metrics_page.page()


def test_grafana_has_every_metric_once():
    expressions = [
        target["expr"] for panel in dashboards()["calibration"]["panels"] for target in panel.get("targets", [])
    ]
    for metric in METRICS:
        assert expressions.count(f'{metric.prometheus}{{run=~"$run"}}') == 1, metric.key
