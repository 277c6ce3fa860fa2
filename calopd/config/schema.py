"""The whole configuration of a run: all sections, and the checks that concern more than one of them."""

from pathlib import Path
from typing import Any

import tomli_w
from pydantic import model_validator

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
from calopd.config.sections.base import Fixed, Section
from calopd.core.methods import METHODS
from calopd.rundir.layout import RunDir


class Config(Section):
    """One TOML file: a table per section."""

    run: RunSection = RunSection()
    data: Fixed[DataSection]
    student: Fixed[StudentSection]
    teacher: TeacherSection
    method: Fixed[MethodSection] = MethodSection()
    rollout: RolloutSection = RolloutSection()
    learner: LearnerSection = LearnerSection()
    evaluation: EvaluationSection = EvaluationSection()
    queue: QueueSection = QueueSection()
    tracking: TrackingSection = TrackingSection()

    @model_validator(mode="before")
    @classmethod
    def _recipe(cls, values: Any) -> Any:
        """Add the paper's recipe of the named method to the settings of the learner."""
        name = values.get("method", {}).get("name", MethodSection.model_fields["name"].default)
        if name not in METHODS:
            return values
        return {**values, "learner": {**METHODS[name].recipe.learner, **values.get("learner", {})}}

    @model_validator(mode="after")
    def _groups(self) -> "Config":
        if self.method.method.compares_samples and self.learner.samples < 2:
            raise ValueError(
                f"{self.method.name} compares the responses to one problem: set learner.samples to 2 or more "
                "(the paper uses 16)"
            )
        return self

    @model_validator(mode="after")
    def _heldout(self) -> "Config":
        if self.evaluation.problems and self.data.heldout is None:
            raise ValueError("evaluation.problems is set, but data.heldout names no file")
        return self

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.run.dir / self.run.name)

    @property
    def policies(self) -> Path:
        """Directory that the learner publishes policies in and the rollouts read them from."""
        return self.run.policies / self.run.name if self.run.policies else self.run_dir.policies

    @property
    def teacher_addresses(self) -> tuple[str, ...]:
        """The addresses of the teacher replicas, or that of the local one."""
        return self.teacher.addresses or (f"127.0.0.1:{self.teacher.port}",)

    def to_toml(self) -> str:
        """The resolved configuration as TOML, without the password of the queue."""
        values = self.model_dump(mode="json")
        values["queue"]["url"] = _without_password(self.queue.url)
        given = {section: {k: v for k, v in keys.items() if v is not None} for section, keys in values.items()}
        return tomli_w.dumps(given)


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else url
