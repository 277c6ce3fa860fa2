"""One TOML file for a run, checked before anything starts: unknown keys are refused with the nearest name."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError, model_validator

from calopd.config.extends import read_values
from calopd.config.nearest import nearest
from calopd.config.sections import (
    DataSection,
    EvaluationSection,
    LearnerSection,
    MethodSection,
    QueueSection,
    RolloutSection,
    RunSection,
    StudentSection,
    TeacherSection,
    TrackingSection,
)
from calopd.config.sections.base import Section
from calopd.core.errors import ConfigError
from calopd.rundir.files import write_text

ENV_PREFIX = "CALOPD__"


class Config(Section):
    run: RunSection = RunSection()
    data: DataSection
    student: StudentSection
    teacher: TeacherSection
    method: MethodSection = MethodSection()
    rollout: RolloutSection = RolloutSection()
    learner: LearnerSection = LearnerSection()
    evaluation: EvaluationSection = EvaluationSection()
    queue: QueueSection = QueueSection()
    tracking: TrackingSection = TrackingSection()

    @model_validator(mode="after")
    def _groups(self) -> "Config":
        if self.method.method.compares_samples and self.learner.samples < 2:
            raise ValueError(
                f"{self.method.name} compares responses to one problem: set learner.samples (the paper has 16)"
            )
        return self

    @model_validator(mode="after")
    def _heldout(self) -> "Config":
        if self.evaluation.problems and self.data.heldout is None:
            raise ValueError("evaluation.problems is set, but data.heldout names no file")
        return self

    @property
    def run_dir(self) -> Path:
        return self.run.dir / self.run.name

    @property
    def policies(self) -> Path:
        """Where the learner publishes and the rollouts read."""
        return self.run.policies / self.run.name if self.run.policies else self.run_dir / "policies"

    @property
    def teacher_addresses(self) -> tuple[str, ...]:
        return self.teacher.addresses or (f"127.0.0.1:{self.teacher.port}",)

    def to_toml(self) -> str:
        """The resolved configuration; the queue's password is not written down."""
        values = self.model_dump(mode="json")
        values["queue"]["url"] = _without_password(self.queue.url)
        set_ = {section: {k: v for k, v in keys.items() if v is not None} for section, keys in values.items()}
        return tomli_w.dumps(set_)


def load_config(path: Path, overrides: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> Config:
    """The file and what it extends, then CALOPD__SECTION__KEY variables, then `section.key=value` overrides."""
    values = read_values(path)
    for name, value in sorted(environ.items()):
        if name.startswith(ENV_PREFIX):
            _put(values, name[len(ENV_PREFIX) :].lower().split("__"), value, name)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {override}: expected section.key=value")
        _put(values, key.strip().split("."), value, f"--set {key}")
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: " + "; ".join(_explain(e) for e in error.errors())) from None


FIXED_IN_A_RUN = (
    "run.name", "run.dir", "run.seed", "data.", "student.", "teacher.path", "method.", "rollout.temperature",
    "rollout.top_p", "rollout.max_tokens", "learner.trajectories", "learner.samples", "learner.lora_",
)  # fmt: skip
"""What the steps of one run must agree on; the rest (ports, replicas, ranks, steps) may change when it is resumed."""


def check_resumable(saved: Config, wanted: Config) -> None:
    """Refuse to go on with a run under settings that would make it another one."""
    for section, values in saved.model_dump(mode="json").items():
        for key, value in values.items():
            other = wanted.model_dump(mode="json")[section][key]
            if value != other and f"{section}.{key}".startswith(FIXED_IN_A_RUN):
                raise ConfigError(
                    f"the run began with {section}.{key} = {value}, not {other}: start a new one for that"
                )


def keep_with_run(config: Config) -> None:
    """Save the resolved configuration in the run's directory; one that would make it another run is refused."""
    file = config.run_dir / "config.toml"
    if file.exists():
        check_resumable(load_config(file, environ={}), config)
        return
    write_text(file, config.to_toml())


def _put(values: dict[str, Any], keys: list[str], text: str, where: str) -> None:
    """Set a nested key; the text is a TOML value where it is one, else a string."""
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    for key in keys[:-1]:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{where}: {key} is a value, not a section")
    values[keys[-1]] = value


def _explain(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        section: Any = Config
        for part in error["loc"][:-1]:
            section = section.model_fields[part].annotation
        return f"unknown key {where}{nearest(str(error['loc'][-1]), section.model_fields)}"
    if error["type"] == "missing":
        return f"{where} is missing"
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}: {message} (given: {error['input']!r})" if where and error["type"] != "value_error" else message


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else url
