"""Runs that differ only in their seed form a group, which is one line of a chart."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calopd.core.errors import ConfigError
from calopd.core.options import is_emulated
from calopd.core.paper_results import pair_of
from calopd.pages.report import read_record
from calopd.pages.report.report_page import RunRecord
from calopd.rundir.layout import RunDir

_NOT_COMPARED = {
    "run": {"name", "dir", "seed", "policies"}, "teacher": {"port", "metrics_port", "addresses"}, "rollout": {"port"},
    "learner": {"port"}, "method": {"recorded_run"}, "queue": None, "tracking": None, "resources": None,
}  # fmt: skip
"""Settings that change no result: of a section, or all of it."""
LONGEST_NAME = 60
"""Characters that a legend has room for."""


@dataclass(frozen=True, slots=True)
class RunGroup:
    name: str
    records: Sequence[RunRecord]
    """One per seed."""
    settings: str = ""
    """The method and all settings in which it differs from any other group."""

    @property
    def label(self) -> str:
        """The name in tables and figures, where nobody may take an emulated run for a real one."""
        return self._marked(self.name)

    @property
    def description(self) -> str:
        """The label with all settings that differ."""
        return self._marked(self.settings or self.name)

    def _marked(self, text: str) -> str:
        return f"{text}, emulated" if self.emulated else text

    @property
    def emulated(self) -> bool:
        return is_emulated(self.config)

    @property
    def config(self) -> dict[str, dict[str, Any]]:
        """The settings of the first run; their seeds differ."""
        return self.records[0].settings

    @property
    def seeds_differ(self) -> bool:
        """Whether no seed stands twice."""
        return len({record.setting("run", "seed") for record in self.records}) == len(self.records)

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


def _settings(record: RunRecord) -> dict[str, Any]:
    """The settings that can change a result; for a control, the method of the run that it follows too."""
    own, recorded = compared_settings(record.config), record.setting("method", "recorded_run", None)
    if recorded is None:
        return own
    if not record.followed:
        return own | {"method.recorded_run": recorded}
    method = compared_settings({"method": record.followed.get("method", {})})
    return own | {f"followed.{key.partition('.')[2]}": value for key, value in method.items()}


def group_runs(directories: Iterable[RunDir]) -> list[RunGroup]:
    """Group runs by their settings.

    The name of a group is the method and the settings that distinguish it from groups of the same method: another
    method has other settings of its own, too many for a legend. Runs with too many differences have their own names.
    """
    groups: dict[str, list[RunRecord]] = {}
    for directory in directories:
        if not directory.is_run:
            raise ConfigError(f"no run at {directory}: expected a directory like runs/demo, which `calopd run` wrote")
        record = read_record(directory)
        groups.setdefault(json.dumps(_settings(record), sort_keys=True), []).append(record)
    settings = [json.loads(key) for key in groups]
    named = []
    for each, records in zip(settings, groups.values(), strict=True):
        same_method = [other for other in settings if other.get("method.name") == each.get("method.name")]
        name = _name(each, _varied(same_method))
        if len(name) > LONGEST_NAME:
            name = f"{each.get('method.name', 'run')}, {', '.join(record.config['run']['name'] for record in records)}"
        named.append(RunGroup(name, records, _name(each, _varied(settings))))
    return named


def _varied(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys with several values."""
    keys = dict.fromkeys(key for each in settings for key in each if key != "method.name")
    return [key for key in keys if len({json.dumps(each.get(key)) for each in settings}) > 1]


def _name(settings: Mapping[str, Any], varied: Sequence[str]) -> str:
    shown = [f"{key.partition('.')[2]} {_value(settings[key])}" for key in varied if key in settings]
    return ", ".join([str(settings.get("method.name", "run")), *shown])


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
