"""Scoring without a model: plausible scores, after the time that a GPU would take."""

from typing import Self

import numpy as np
import torch

from calopd.config.sections import TeacherSection
from calopd.core.errors import ConfigError
from calopd.models.loading import revision
from calopd.models.model_files import model_config, model_folder
from calopd.planning.emulation import Emulation
from services.teacher_scorer.engines.scoring_engine import BatchScores, SequenceScores, SequenceToScore

NOISE = -np.random.default_rng(1).exponential(0.4, 131_072).astype(np.float32)
"""Log-probabilities that scores are taken from."""


class EmulatedScorer:
    """A teacher of the plan, without weights."""

    dtype = torch.float32

    def __init__(self, path: str, emulation: Emulation) -> None:
        self.name, self.model = emulation.name, path
        folder = model_folder(path)
        if folder is None:
            raise ConfigError(f"teacher.path = {path!r}: no config.json on this machine")
        values = model_config(folder)
        self.vocabulary_size = int(values["vocab_size"])
        self.max_positions = int(values["max_position_embeddings"])
        self.revision = f"emulated-{revision(path, (folder / 'config.json').read_text())}"
        self._emulation, self._pacer = emulation, emulation.pacer()

    @classmethod
    def configured(
        cls, teacher: TeacherSection, *, deterministic: bool = False, emulation: Emulation | None = None
    ) -> Self:
        if emulation is None:
            raise ConfigError('teacher.engine = "emulated" scores nothing: it is for `calopd run` only')
        return cls(teacher.path, emulation)

    def score(self, sequences: list[SequenceToScore]) -> BatchScores:
        seconds = sum(self._emulation.scoring(len(s.prompt_ids), len(s.response_ids)) for s in sequences)
        self._pacer.spend(seconds)
        return BatchScores(
            [_scores(sequence) for sequence in sequences],
            sum(sequence.tokens for sequence in sequences),
            forward_seconds=seconds * self._emulation.scale,
        )

    def reference(self, sequence: SequenceToScore) -> np.ndarray:
        return _scores(sequence).logprobs


def _scores(sequence: SequenceToScore) -> SequenceScores:
    """Scores that depend on the prompt, so that contexts differ, and are the same whenever they are asked for."""
    tokens, top_k = len(sequence.response_ids), sequence.options.top_k
    start = (7 * len(sequence.prompt_ids) + int(sequence.response_ids[0])) % (len(NOISE) - tokens)
    logprobs = NOISE[start : start + tokens]
    gated = sequence.options.top_k_min_entropy is not None
    return SequenceScores(
        logprobs=logprobs,
        top_ids=np.tile(np.arange(top_k), (0 if gated else tokens, 1)) if top_k else None,
        top_logprobs=np.full((0 if gated else tokens, top_k), -3.0, np.float32) if top_k else None,
        entropy=-logprobs if sequence.options.want_entropy else None,
        top_positions=np.empty(0, np.int32) if top_k and gated else None,
    )
