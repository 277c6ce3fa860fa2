"""Trackers: a resumed run has every step once, and a missing library is told before the start."""

import importlib.util
from pathlib import Path

import pytest

from calopd.core.errors import ConfigError
from calopd.core.step_metrics import METRICS, PROBE
from calopd.rundir.files import read_lines
from calopd.rundir.layout import RunDir
from calopd.tracking import prometheus_tracker, registry
from calopd.tracking.metrics_page import metrics_of_run
from calopd.tracking.registry import ALWAYS, TRACKERS, Trackers, check_libraries
from calopd.tracking.tracker import TrackedRun
from tests.tracking.read_back import prometheus_values, tensorboard_steps, wandb_steps


def line_of(step: int, attempt: int = 0) -> dict[str, float | None]:
    """A line with an exact value for every metric, but one that was not measured."""
    keys = [metric.key.replace(PROBE, "eval+") for metric in METRICS]
    values: dict[str, float | None] = {key: (100 * step + place + attempt) / 7919 for place, key in enumerate(keys)}
    return values | {"step": step, "forward_kl": None}


def measured(line: dict[str, float | None]) -> dict[str, float | None]:
    return {key: value for key, value in line.items() if value is not None}


def start(directory: Path, first_step: int = 0) -> Trackers:
    return Trackers(
        list(TRACKERS), TrackedRun(directory=RunDir(directory), run_id="r-1", name="r", first_step=first_step)
    )


def test_all_trackers_record_the_same_line(tmp_path):
    trackers = start(tmp_path)
    trackers.record(line_of(0))
    page = metrics_of_run("r").decode()
    trackers.close()
    assert read_lines(tmp_path / "metrics.jsonl") == [line_of(0)]
    assert prometheus_values(page) == measured(line_of(0))
    assert tensorboard_steps(tmp_path / "tensorboard") == {1: measured(line_of(0)) | {"step": 1}}
    assert wandb_steps(tmp_path / "wandb") == {1: measured(line_of(0)) | {"step": 1}}


def test_steps_after_the_checkpoint_are_recorded_once(tmp_path):
    """Killed after step 4, resumed from the checkpoint of step 3: steps 3 and 4 are those of the second attempt."""
    first = start(tmp_path)
    for step in range(5):
        first.record(line_of(step))
    first.close()
    second = start(tmp_path, first_step=3)
    for step in range(3, 6):
        second.record(line_of(step, attempt=1))
    second.close()
    expected = {step: measured(line_of(step, attempt=step >= 3)) for step in range(6)}
    assert {line["step"]: measured(line) for line in read_lines(tmp_path / "metrics.jsonl")} == expected
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 6
    shown = {step + 1: line | {"step": step + 1} for step, line in expected.items()}
    assert tensorboard_steps(tmp_path / "tensorboard") == shown
    assert wandb_steps(tmp_path / "wandb") == shown


def test_progress_is_known_before_the_first_step(tmp_path):
    run = TrackedRun(directory=RunDir(tmp_path), run_id="r-1", name="r")
    prometheus_tracker.PrometheusTracker(run)
    assert prometheus_values(metrics_of_run("r").decode()) == {"policy_version": 0}


def test_an_evaluation_between_two_steps_is_visible_at_once(tmp_path):
    tracker = prometheus_tracker.PrometheusTracker(TrackedRun(directory=RunDir(tmp_path), run_id="r-1", name="r"))
    tracker.record(line_of(0))
    prometheus_tracker.last_step.update(evaluation_accuracy=0.75, evaluation_policy_version=1)
    expected = measured(line_of(0)) | {"evaluation_accuracy": 0.75, "evaluation_policy_version": 1}
    assert prometheus_values(metrics_of_run("r").decode()) == expected


def test_prometheus_names_are_unique_and_end_with_their_unit():
    names = [metric.prometheus for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.unit in ("", "count") or metric.prometheus.endswith(f"_{metric.unit}"), metric.key


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_library_names_the_extra(name, monkeypatch):
    monkeypatch.setattr(registry, "find_spec", lambda library: None)
    with pytest.raises(ConfigError, match=rf"\.\[{name}\]"):
        check_libraries([name])


def test_registered_trackers_exist():
    for entry in (ALWAYS | TRACKERS).values():
        module, _, _ = entry.path.partition(":")
        assert importlib.util.find_spec(module) is not None
