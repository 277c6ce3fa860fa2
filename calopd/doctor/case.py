"""The run that is examined, and what the checks load of it, each thing once."""

from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from calopd.config import Config
from calopd.core.contexts import BASE
from calopd.core.types import Problem
from calopd.data.problems import load_all
from calopd.models.model_files import model_folder
from calopd.models.prompts import Prompts
from calopd.models.tokenizers import load_tokenizer

Role = Literal["student", "teacher"]
ROLES: tuple[Role, ...] = ("student", "teacher")


class Case:
    """A configuration under examination. What cannot be loaded raises the error that tells why."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def path(self, role: Role) -> str:
        return self.config.student.path if role == "student" else self.config.teacher.path

    @property
    def teacher_is_remote(self) -> bool:
        """Whether the teacher runs elsewhere; then its files need not be on this machine."""
        return bool(self.config.teacher.addresses)

    @cached_property
    def student_folder(self) -> Path | None:
        return model_folder(self.config.student.path)

    @cached_property
    def teacher_folder(self) -> Path | None:
        return model_folder(self.config.teacher.path)

    def folder(self, role: Role) -> Path | None:
        """The model's files, if they are on this machine."""
        folder = self.student_folder if role == "student" else self.teacher_folder
        return folder if folder is not None and (folder / "config.json").is_file() else None

    @cached_property
    def student_tokenizer(self) -> Any:
        return load_tokenizer(self.config.student.path)

    @cached_property
    def teacher_tokenizer(self) -> Any:
        return load_tokenizer(self.config.teacher.path)

    @cached_property
    def _problems(self) -> tuple[list[Problem], list[Problem]]:
        return load_all(self.config.data.train, self.config.data.heldout)

    @property
    def training(self) -> list[Problem]:
        return self._problems[0]

    @property
    def heldout(self) -> list[Problem]:
        return self._problems[1]

    @cached_property
    def prompts(self) -> Prompts:
        return Prompts.configured(self.config, self.student_tokenizer, self.training)

    @property
    def contexts(self) -> tuple[str, ...]:
        """All contexts that a run scores under, c0 first."""
        method = self.config.method
        return tuple(dict.fromkeys((BASE, *method.scored_contexts(), *method.scored_contexts(measured=True))))
