"""One run, all outlets: metrics.jsonl, Prometheus, report, Grafana, TensorBoard and Weights & Biases agree."""

import re
import subprocess
import urllib.request

import pytest

from calopd.config import Config, load_config
from calopd.core.step_metrics import METRICS
from calopd.rundir.files import read_lines
from deploy.monitoring.grafana.dashboards import dashboards  # type: ignore[attr-defined]  # a folder has its name
from tests.e2e.runs import finish, start
from tests.tracking.read_back import Steps, prometheus_values, report_steps, tensorboard_steps, wandb_steps

pytestmark = pytest.mark.slow
STEPS = 4
EVALUATION = {"evaluation_accuracy", "evaluation_policy_version"}
"""Prometheus shows an evaluation as soon as it is finished; the other outlets, with the next step."""


def scraped(process: "subprocess.Popen[str]", port: int) -> list[dict[str, float]]:
    """The step gauges of every /metrics page of the learner until the run ends."""
    pages: list[dict[str, float]] = []
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                values = prometheus_values(answer.read().decode())
        except OSError:
            values = {}  # not up yet, or ended already
        if values and (not pages or pages[-1] != values):
            pages.append(values)
        try:
            process.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            continue
    return pages


@pytest.fixture(scope="module")
def tracked(tiny) -> tuple[Config, Steps, list[dict[str, float]]]:
    """A finished run, the measured values of its lines, and what Prometheus would have scraped meanwhile."""
    file = tiny.write_config("tracked", steps=STEPS)
    setting = 'tracking.trackers=["tensorboard", "wandb"]'
    config = load_config(file, [setting], {})
    process = start(str(file), "--set", setting)
    pages = scraped(process, config.learner.port)
    finish(process)
    lines = read_lines(config.run_dir.metrics)
    assert [line["step"] for line in lines] == list(range(STEPS))
    measured = {line["step"]: {key: value for key, value in line.items() if value is not None} for line in lines}
    return config, measured, pages


def test_tensorboard_weights_and_biases_and_the_report_show_the_lines(tracked):
    config, lines, _ = tracked
    # For people the first step is 1.
    shown = {step + 1: {**line, "step": step + 1} for step, line in lines.items()}
    assert tensorboard_steps(config.run_dir.tensorboard) == shown
    assert wandb_steps(config.run_dir.wandb) == shown
    assert report_steps(config.run_dir.report.read_text()) == shown


def test_prometheus_shows_the_line_of_the_last_step(tracked):
    _, lines, pages = tracked
    seen = {int(page["step"]): page for page in pages if "step" in page}
    assert seen, "no page was scraped after the first step"
    for step, page in seen.items():
        assert page.keys() - EVALUATION == lines[step].keys() - EVALUATION
        assert all(page[key] == lines[step][key] for key in page.keys() - EVALUATION)
        if "evaluation_policy_version" in lines[step]:
            assert page["evaluation_policy_version"] >= lines[step]["evaluation_policy_version"]


def test_grafana_asks_for_what_prometheus_has(tracked):
    _, lines, _ = tracked
    targets = {
        target["expr"]: target["legendFormat"]
        for panel in dashboards()["calibration"]["panels"]
        for target in panel.get("targets", [])
    }
    for metric in METRICS:
        if metric.keys_in(lines[STEPS - 1]):
            legend = targets[f'{metric.prometheus}{{run=~"$run"}}']
            assert legend == ("{{run}} {{probe}}" if metric.per_probe else f"{{{{run}}}} {metric.label}".strip())


def test_the_password_of_the_queue_is_not_tracked(tracked):
    """The launcher gives the learner the address of its own server, with a password."""
    config, _, _ = tracked
    (file,) = config.run_dir.wandb.glob("offline-run-*/*.wandb")
    addresses = re.findall(rb"redis://[^/]*/", file.read_bytes())
    assert addresses
    assert not any(b"@" in address for address in addresses)
