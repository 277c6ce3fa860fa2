"""What a scoring engine is."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from calopd.config.sections import TeacherSection
from calopd.core.types import LOGPROBS_ONLY, ScoreOptions


@dataclass(frozen=True, slots=True)
class SequenceToScore:
    """One response under one context."""

    prompt_ids: np.ndarray
    response_ids: np.ndarray
    options: ScoreOptions = LOGPROBS_ONLY

    @property
    def tokens(self) -> int:
        """Positions of the forward pass: the last response token is scored, not read."""
        return len(self.prompt_ids) + len(self.response_ids) - 1

    @property
    def read_ids(self) -> np.ndarray:
        return np.concatenate((self.prompt_ids, self.response_ids[:-1]))


@dataclass(frozen=True, slots=True)
class SequenceScores:
    logprobs: np.ndarray
    """float32 [T]."""
    top_ids: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None
    entropy: np.ndarray | None = None
    top_positions: np.ndarray | None = None
    """int32 [P]: the response tokens that the top-k is of; None = all."""


@dataclass(frozen=True, slots=True)
class BatchScores:
    scores: list[SequenceScores]
    """In the order of the batch."""
    computed_tokens: int
    """Positions that the body computed: fewer than the batch has where sequences begin alike."""
    padding_tokens: int = 0
    forward_seconds: float = 0.0
    head_seconds: float = 0.0


class ScoringEngine(Protocol):
    name: str
    model: str
    revision: str
    vocabulary_size: int
    max_positions: int

    @classmethod
    def configured(cls, teacher: TeacherSection) -> "ScoringEngine":
        """Load the teacher with the settings of [teacher]."""
        ...

    def score(self, sequences: list[SequenceToScore]) -> BatchScores: ...

    def reference(self, sequence: SequenceToScore) -> np.ndarray:
        """Log-probabilities the plain way, full logits and no batching: what `score` is held against."""
        ...
