"""The interface of a scoring engine: a model that computes the log-probabilities of responses in batches."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, Self

import numpy as np
import torch

from calopd.config.sections import TeacherSection
from calopd.core.lm_head import HeadScores
from calopd.core.types import LOGPROBS_ONLY, ScoreOptions, TopK


@dataclass(frozen=True, slots=True)
class SequenceToScore:
    """One response under one context."""

    prompt_ids: np.ndarray
    response_ids: np.ndarray
    options: ScoreOptions = LOGPROBS_ONLY

    @property
    def tokens(self) -> int:
        """Positions of the forward pass: the last response token is scored but not an input."""
        return len(self.prompt_ids) + len(self.response_ids) - 1

    @property
    def read_ids(self) -> np.ndarray:
        return np.concatenate((self.prompt_ids, self.response_ids[:-1]))


@dataclass(frozen=True, slots=True)
class SequenceScores:
    """The scores of one sequence: the fields of HeadScores as arrays in main memory, which outlive the batch."""

    logprobs: np.ndarray
    """float32 [T]."""
    top_ids: np.ndarray | None = None
    """[P, K]."""
    top_logprobs: np.ndarray | None = None
    """float32 [P, K]."""
    entropy: np.ndarray | None = None
    """float32 [T]."""
    top_positions: np.ndarray | None = None
    """[P]: the response tokens of the rows of the top-k; None = all."""

    @classmethod
    def of(cls, scores: HeadScores) -> Self:
        tensors = {field.name: getattr(scores, field.name) for field in fields(cls)}
        return cls(**{name: tensor.cpu().numpy() for name, tensor in tensors.items() if tensor is not None})

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate consecutive parts of a sequence."""
        starts = np.cumsum([0, *(len(part.logprobs) for part in parts)])
        shifted = [
            part if part.top_positions is None else replace(part, top_positions=part.top_positions + start)
            for part, start in zip(parts, starts, strict=False)
        ]
        return cls(**{name: np.concatenate([getattr(part, name) for part in shifted]) for name in parts[0].arrays()})

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the fields that are present."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def rows(self, start: int, end: int) -> Self:
        """Return the scores of the tokens from `start` to `end`."""
        found = {name: values[start:end] for name, values in self.arrays().items()}
        if self.top_positions is not None and self.top_ids is not None and self.top_logprobs is not None:
            low, high = np.searchsorted(self.top_positions, (start, end))
            found["top_ids"], found["top_logprobs"] = self.top_ids[low:high], self.top_logprobs[low:high]
            found["top_positions"] = self.top_positions[low:high] - start
        return type(self)(**found)

    @property
    def top_k(self) -> TopK | None:
        if self.top_ids is None or self.top_logprobs is None:
            return None
        return TopK(self.top_ids, self.top_logprobs, self.top_positions)


@dataclass(frozen=True, slots=True)
class BatchScores:
    scores: list[SequenceScores]
    """In the order of the batch."""
    computed_tokens: int
    """Positions that the forward pass computed: fewer than the batch has if sequences share prefixes."""
    padding_tokens: int = 0
    forward_seconds: float = 0.0
    head_seconds: float = 0.0


class ScoringEngine(Protocol):
    name: str
    model: str
    revision: str
    vocabulary_size: int
    max_positions: int
    dtype: torch.dtype
    """Of the weights and the forward pass."""

    @classmethod
    def configured(cls, teacher: TeacherSection, *, deterministic: bool = False) -> "ScoringEngine":
        """Load the teacher with the settings of [teacher].

        With `deterministic`, the same batch has the same scores, bit for bit, whatever was scored before it.
        """
        ...

    def score(self, sequences: list[SequenceToScore]) -> BatchScores: ...

    def reference(self, sequence: SequenceToScore) -> np.ndarray:
        """Log-probabilities from full logits, without batching: the reference for `score`."""
        ...
