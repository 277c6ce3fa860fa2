"""The run that is examined, and what the checks load of it, each thing once."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calopd.config import Config
from calopd.config.placement import ROLES as PLACED
from calopd.core.contexts import BASE
from calopd.core.types import Problem
from calopd.data.problems import load_all
from calopd.models.model_files import model_folder
from calopd.models.prompts import Prompts
from calopd.models.tokenizer_files import FileTokenizer, has_tokenizer_files
from calopd.models.tokenizers import load_tokenizer
from calopd.transport.auth import token

if TYPE_CHECKING:
    from calopd.transport.convert import Description
    from calopd.transport.replicas import Replica

Role = Literal["student", "teacher"]
ROLES: tuple[Role, ...] = ("student", "teacher")
HANDFUL = 16
TEXT = (
    "A train leaves at 9:40 and arrives at 12:05. How long does it travel? From 9:40 to 12:00 there are 140 minutes, "
    "and 5 more make 145. Wait, let me check: 20 + 120 + 5 = 145. That is 2 hours and 25 minutes, as 145 - 120 = 25. "
    "So the answer is \\boxed{145}."
)
"""Long enough that constant scores are noticed with any tokenizer."""


class Case:
    """A configuration under examination. What cannot be loaded raises the error that tells why."""

    def __init__(
        self, config: Config, *, problems: int = HANDFUL, study: Sequence[str] = (), placed: Sequence[str] = PLACED
    ) -> None:
        self.config = config
        self.study = tuple(study)
        """The contexts of a study, c0 first; empty for a run."""
        self.placed = tuple(placed)
        """The roles that use their GPUs of [resources]."""
        self._count = problems
        self.answers: dict[str, dict[str, Any]] = {}
        """Answers of the jobs that loaded a model, by role."""

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

    def file_tokenizer(self, role: Role) -> Any:
        """The tokenizer of a model, from its files alone where that is possible: transformers takes long to import."""
        folder = self.folder(role)
        if folder is not None and has_tokenizer_files(folder):
            return FileTokenizer(folder)
        return self.student_tokenizer if role == "student" else self.teacher_tokenizer

    @cached_property
    def file_prompts(self) -> Prompts:
        """Prompts of the student's files."""
        return Prompts.configured(self.config, self.file_tokenizer("student"), self.training)

    @cached_property
    def _problems(self) -> tuple[list[Problem], list[Problem]]:
        return load_all(self.config.data.train, self.config.data.heldout)

    @property
    def training(self) -> list[Problem]:
        return self._problems[0]

    @property
    def heldout(self) -> list[Problem]:
        return self._problems[1]

    @property
    def handful(self) -> list[Problem]:
        """A few problems that both models are tried on: held-out ones if there are any."""
        return (self.heldout or self.training)[: self._count]

    @cached_property
    def prompts(self) -> Prompts:
        return Prompts.configured(self.config, self.student_tokenizer, self.training)

    @cached_property
    def replicas(self) -> "list[Replica]":
        """Every replica behind every address of the teacher."""
        from calopd.transport.replicas import replicas_at

        return [found for address in self.config.teacher.addresses for found in replicas_at(address, token=token())]

    @cached_property
    def descriptions(self) -> "list[Description]":
        return [replica.describe() for replica in self.replicas]

    @cached_property
    def sequences(self) -> dict[str, np.ndarray]:
        """Prompts that scores are compared on: the first problem under every context."""
        return {context: self.prompts.ids(self.training[0], context) for context in self.contexts}

    @cached_property
    def scored_ids(self) -> np.ndarray:
        """The response that scores are compared on, as the student's tokenizer writes it."""
        return np.asarray(self.student_tokenizer.encode(TEXT, add_special_tokens=False), dtype=np.int32)

    @property
    def contexts(self) -> tuple[str, ...]:
        """All contexts that a run scores under, c0 first."""
        if self.study:
            return self.study
        method = self.config.method
        return tuple(dict.fromkeys((BASE, *method.scored_contexts(), *method.scored_contexts(measured=True))))
