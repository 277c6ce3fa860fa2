"""Runs that differ only in their seed form a group, which is one line of a chart."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calopd.core.errors import ConfigError
from calopd.core.paper_results import pair_of
from calopd.pages.report import read_record
from calopd.pages.report.report_page import RunRecord
from calopd.rundir.layout import RunDir

_NOT_COMPARED = {
    "run": {"name", "dir", "seed", "policies"}, "teacher": {"port", "metrics_port", "addresses"}, "rollout": {"port"},
    "learner": {"port"}, "method": {"recorded_run"}, "queue": None, "tracking": None, "resources": None,
}  # fmt: skip
"""Settings that change no result: of a section, or all of it."""


@dataclass(frozen=True, slots=True)
class RunGroup:
    label: str
    records: Sequence[RunRecord]
    """One per seed."""

    @property
    def config(self) -> dict[str, dict[str, Any]]:
        return self.records[0].config

    @property
    def pair(self) -> str:
        student, teacher = pair_of(self.config)
        return f"{teacher} → {student}"


def compared_settings(config: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`section.key` -> value of the settings that can change a result."""
    kept: dict[str, Any] = {}
    for section, values in config.items():
        ignored = _NOT_COMPARED.get(section, set())
        if ignored is not None:
            kept |= {f"{section}.{key}": value for key, value in values.items() if key not in ignored}
    return kept


def group_runs(directories: Iterable[RunDir]) -> list[RunGroup]:
    """Group runs by their settings; the label of a group names the method and the settings that distinguish it."""
    groups: dict[str, list[RunRecord]] = {}
    for directory in directories:
        if not directory.config.is_file():
            raise ConfigError(f"no run at {directory}: expected a run directory with {directory.config.name}")
        record = read_record(directory)
        groups.setdefault(json.dumps(compared_settings(record.config), sort_keys=True), []).append(record)
    settings = [json.loads(key) for key in groups]
    varied = [
        key
        for key in dict.fromkeys(key for each in settings for key in each)
        if key != "method.name" and len({json.dumps(each.get(key)) for each in settings}) > 1
    ]
    return [RunGroup(_label(each, varied), records) for each, records in zip(settings, groups.values(), strict=True)]


def _label(settings: Mapping[str, Any], varied: Sequence[str]) -> str:
    shown = [f"{key.partition('.')[2]} {_value(settings[key])}" for key in varied if key in settings]
    return ", ".join([str(settings.get("method.name", "run")), *shown])


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
