"""The report page: header with the results, curves, trajectories and configuration."""

import statistics
from dataclasses import dataclass, field
from html import escape
from typing import Any

from calopd.core.options import is_emulated
from calopd.pages.cards import Card, percent, points, render_card
from calopd.pages.document import document
from calopd.pages.report.curves import render_curves
from calopd.pages.report.evaluation_curve import render_evaluations
from calopd.pages.report.trajectories import render_trajectories

DEMO_MODELS = "examples/demo"
DEMO_NOTE = (
    "The demo's synthetic data makes the teacher deviate on discourse words: this page shows that the system works, "
    "not that the paper's claim holds or that calibration beats OPD."
)
EMULATED_NOTE = "Emulated run: engines with a clock instead of models. Times are of a plan, all else means nothing."


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The records in a run's directory."""

    config: dict[str, dict[str, Any]]
    steps: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    summary: dict[str, Any] | None
    """None until the run is finished."""
    trajectories: list[dict[str, Any]]
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """Policies that were evaluated, in the order of their versions."""
    followed: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The configuration of the recorded run that a control follows."""
    problems: int | None = None
    """Problems that the run trains on; None if that is not recorded."""

    def setting(self, section: str, key: str, default: Any = "") -> Any:
        return self.config.get(section, {}).get(key, default)

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """The configuration, the number of problems as `data.problems`, and under `followed` the recorded run's."""
        data = {**self.config.get("data", {}), "problems": self.problems}
        return {**self.config, "data": data, "followed": self.followed}

    @property
    def name(self) -> str:
        return str(self.setting("run", "name", "run"))

    @property
    def method(self) -> str:
        return str((self.summary or {}).get("method") or self.setting("method", "name"))

    @property
    def sampler(self) -> str:
        return str((self.summary or {}).get("sampler") or self.setting("rollout", "engine"))

    def values(self, key: str) -> list[float]:
        """The measured values of a metric, step by step."""
        return [row[key] for row in self.steps if row.get(key) is not None]


def render(record: RunRecord) -> str:
    """The whole page as one string of HTML."""
    body = f"{_header(record)}\n{_body(record)}\n{_configuration(record.config)}"
    return document(f"{record.name} · {record.method} run", body)


def _body(record: RunRecord) -> str:
    if not record.steps:
        return '<p class="notice">No step has been recorded yet, so there are no curves to draw.</p>'
    curves = render_evaluations(record.evaluations) + render_curves(record.steps, record.config)
    return curves + render_trajectories(record.trajectories, float(record.setting("method", "relaxation", 5.0)))


def _header(record: RunRecord) -> str:
    about = {
        "method": record.method,
        "sampler": record.sampler,
        "student": record.setting("student", "path"),
        "teacher": record.setting("teacher", "path"),
    }
    facts = "".join(f"<span>{key} <b>{escape(str(value))}</b></span>" for key, value in about.items())
    notices = "".join(f'<p class="notice">{escape(notice)}</p>' for notice in _notices(record))
    cards = "".join(render_card(card) for card in _cards(record))
    return (
        f'<header class="top"><p class="kicker">On-policy distillation run</p><h1>{escape(record.name)}</h1>'
        f'<p class="about">{facts}</p></header>{notices}<div class="cards">{cards}</div>'
    )


def _notices(record: RunRecord) -> list[str]:
    notices = []
    if record.summary is None:
        planned = record.setting("run", "steps", "an unknown number of")
        notices.append(f"Unfinished run: {len(record.steps)} of {planned} steps are recorded, and there is no summary.")
    if is_emulated(record.config):
        notices.append(EMULATED_NOTE)
    if DEMO_MODELS in str(record.setting("student", "path")):
        notices.append(DEMO_NOTE)
    return notices


def _cards(record: RunRecord) -> list[Card]:
    return [
        _accuracy_card(record),
        _ratio_card(record, "retained_ratio", "Retained discrepancy"),
        _ratio_card(record, "zero_ratio", "Zero-advantage tokens"),
        _tickets_card(record),
        _time_card(record),
    ]


def _accuracy_card(record: RunRecord) -> Card:
    label, summary = "Held-out accuracy", record.summary or {}
    before, after = summary.get("accuracy_before"), summary.get("accuracy_after")
    if before is None or after is None:
        pending = record.summary is None and record.setting("evaluation", "problems", 0)
        return Card(label, "–", "known when the run ends" if pending else "not evaluated")
    detail = f"gain {points(after - before)} points"
    if summary.get("gain_interval_95"):
        low, high = summary["gain_interval_95"]
        detail += f", 95 % interval {points(low)} to {points(high)}"
    if summary.get("evaluation_problems"):
        detail += f"; {summary['evaluation_problems']:,} problems"
    return Card(label, f"{percent(before)} → {percent(after)}", detail)


def _ratio_card(record: RunRecord, key: str, label: str) -> Card:
    """The mean over the steps, and the first and last value."""
    values = record.values(key)
    if not values:
        return Card(label, "–", "not measured")
    mean = (record.summary or {}).get(key)
    mean = sum(values) / len(values) if mean is None else mean
    return Card(label, percent(mean), f"mean of the steps; first {percent(values[0])}, last {percent(values[-1])}")


def _tickets_card(record: RunRecord) -> Card:
    summary, label = record.summary or {}, "Trajectories used / tickets issued"
    used, missing = (int(sum(record.values(key))) for key in ("tickets_used", "tickets_missing"))
    used = summary.get("trajectories_used", used)
    issued = summary.get("tickets_issued", used + missing)
    detail = "every ticket became a trajectory" if used == issued else f"{issued - used:,} without a trajectory"
    return Card(label, f"{used:,} / {issued:,}", detail if issued else "")


def _time_card(record: RunRecord) -> Card:
    seconds = (record.summary or {}).get("seconds")
    steps = record.values("seconds")
    total = sum(steps) if seconds is None else seconds
    # The first step includes the start of the engines: the mean would be too long.
    detail = f"{len(record.steps)} steps, median {statistics.median(steps):.1f} s" if steps else ""
    return Card("Minutes", f"{total / 60:.1f}", detail)


def _configuration(config: dict[str, dict[str, Any]]) -> str:
    tables = "".join(
        f"<table><caption>[{escape(section)}]</caption>{_settings(values)}</table>"
        for section, values in config.items()
    )
    return (
        "<section><details><summary><h2>Configuration</h2></summary>"
        f'<div class="settings">{tables}</div></details></section>'
    )


def _settings(values: dict[str, Any]) -> str:
    return "".join(
        f"<tr><th>{escape(key)}</th><td>{escape(_setting(value))}</td></tr>" for key, value in values.items()
    )


def _setting(value: Any) -> str:
    """A value as TOML spells it, without quotes and brackets."""
    if isinstance(value, list):
        return ", ".join(map(_setting, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
