"""The whole configuration of a run: all sections, and the checks that concern more than one of them."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import tomli_w
from pydantic import model_validator

from calopd.config.method_file import DIGEST
from calopd.config.placement import COUNTED, Placement, counts, place
from calopd.config.sections import (
    DataSection,
    EmulationSection,
    EvaluationSection,
    LearnerSection,
    MethodSection,
    QueueSection,
    ResourcesSection,
    RolloutSection,
    RunSection,
    StudentSection,
    TeacherSection,
    TrackingSection,
)
from calopd.config.sections.base import Fixed, Section
from calopd.core.methods import METHODS
from calopd.core.options import EMULATED
from calopd.rundir.digests import sha256
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
    resources: ResourcesSection = ResourcesSection()
    queue: QueueSection = QueueSection()
    tracking: TrackingSection = TrackingSection()
    emulation: EmulationSection = EmulationSection()

    @model_validator(mode="before")
    @classmethod
    def _recipe(cls, values: Any) -> Any:
        """Add the paper's recipe of the named method to the settings of the learner."""
        name = values.get("method", {}).get("name", MethodSection.model_fields["name"].default)
        if name not in METHODS:
            return values
        return {**values, "learner": {**METHODS[name].recipe.learner, **values.get("learner", {})}}

    @model_validator(mode="before")
    @classmethod
    def _processes(cls, values: Any) -> Any:
        """Derive the number of replicas and ranks from the GPUs of a role that is placed."""
        derived = {
            role: {COUNTED[role]: number, **values.get(role, {})} for role, number in counts(values).items() if number
        }
        return {**values, **derived}

    @model_validator(mode="after")
    def _placed(self) -> "Config":
        for role, number in zip(COUNTED, _processes_of(self.placement), strict=True):
            section, key = getattr(self, role), COUNTED[role]
            if number and getattr(section, key) != number:
                raise ValueError(
                    f"{role}.{key} is {getattr(section, key)}, but resources.{role} has GPUs for {number}: "
                    f"leave out {role}.{key}, it follows from resources.{role}"
                )
            if number and section.device.startswith("cuda:"):
                raise ValueError(
                    f"{role}.device is {section.device!r}, but resources.{role} chooses the GPUs: leave it out"
                )
        return self

    @model_validator(mode="after")
    def _groups(self) -> "Config":
        if self.method.method.compares_samples and self.learner.samples < 2:
            raise ValueError(
                f"{self.method.name} compares the responses to one problem: set learner.samples to 2 or more "
                "(the paper uses 16)"
            )
        return self

    @model_validator(mode="after")
    def _stale(self) -> "Config":
        if self.run.max_staleness and self.method.student_logprobs == "rollout":
            raise ValueError(
                'method.student_logprobs is "rollout" and run.max_staleness is above 0: the advantage would be that of '
                'an older student. Set method.student_logprobs to "learner" or run.max_staleness to 0'
            )
        return self

    @model_validator(mode="after")
    def _heldout(self) -> "Config":
        if self.evaluation.problems and self.data.heldout is None:
            raise ValueError("evaluation.problems is set, but data.heldout names no file")
        return self

    @model_validator(mode="after")
    def _emulation(self) -> "Config":
        engines = {f"{role}.engine": getattr(self, role).engine for role in ("teacher", "rollout", "learner")}
        real = [key for key, engine in engines.items() if engine != EMULATED]
        if len(real) == len(engines):
            return self
        if real:
            raise ValueError(f'{real[0]} is not "{EMULATED}", but another engine is: all three are, or none')
        if not (self.emulation.gpu or self.resources.gpu):
            raise ValueError("emulated engines need the name of a GPU: set emulation.gpu")
        if self.evaluation.problems or self.tracking.trackers:
            raise ValueError(
                "an emulated run trains no model: leave out evaluation.problems and tracking.trackers, "
                "whose figures would look like those of a real run"
            )
        return self

    @property
    def emulated(self) -> bool:
        """Whether the engines have a clock instead of a GPU."""
        return self.learner.engine == EMULATED

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.run.dir / self.run.name)

    @property
    def policies(self) -> Path:
        """Directory that the learner publishes policies in and the rollouts read them from."""
        return self.run.policies / self.run.name if self.run.policies else self.run_dir.policies

    @property
    def teacher_addresses(self) -> tuple[str, ...]:
        """The addresses of the teacher replicas, or those of the local ones."""
        local = range(self.teacher.port, self.teacher.port + self.teacher.replicas)
        return self.teacher.addresses or tuple(f"127.0.0.1:{port}" for port in local)

    @property
    def placement(self) -> Placement:
        """The GPUs of every process of the run."""
        return place(self.resources, self.teacher.tensor_parallel_size, self.rollout.tensor_parallel_size)

    def to_toml(self) -> str:
        """The resolved configuration as TOML, without the password of the queue and what follows from [resources]."""
        values = self.model_dump(mode="json")
        for role, number in zip(COUNTED, _processes_of(self.placement), strict=True):
            if number:
                del values[role][COUNTED[role]]
        values["queue"]["url"] = _without_password(self.queue.url)
        if file := values["method"].get("file"):
            values["method"][DIGEST] = sha256(Path(file))
        given = {section: {k: v for k, v in keys.items() if v is not None} for section, keys in values.items()}
        return tomli_w.dumps(given)


def _processes_of(placement: Placement) -> tuple[int, int, int]:
    return len(placement.teachers), len(placement.rollouts), len(placement.learner)


def _without_password(url: str) -> str:
    """The address without user and password, which may stand before the host or among the options."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    options = [(name, value) for name, value in parse_qsl(parts.query) if not re.search("user|pass", name, re.I)]
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=urlencode(options)))
