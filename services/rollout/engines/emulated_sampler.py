"""Sampling without a model: responses of the planned lengths, after the time that a GPU would take."""

from pathlib import Path
from typing import Self

import numpy as np

from calopd.config.sections import RolloutSection
from calopd.core.errors import ConfigError
from calopd.planning.decode_batch import CHUNK, DecodeBatch
from calopd.planning.emulation import Emulation
from services.rollout.engines.sampling_engine import Finished, SampleRequest

TICK_SECONDS = 0.01
"""Time between two looks at new requests."""
NOISE = -np.random.default_rng(0).exponential(0.5, 65_536).astype(np.float32)
"""Log-probabilities that responses take theirs from."""


class EmulatedSampler:
    """A rollout of the plan: continuous batching, a KV cache that fills up, and no weights."""

    def __init__(self, emulation: Emulation, stop_ids: list[int]) -> None:
        self.name = emulation.name
        self._emulation, self._stop_ids = emulation, stop_ids
        self._batch = DecodeBatch(emulation.replica)
        self._pacer = emulation.pacer()
        self._requests: dict[int, SampleRequest] = {}
        self._held: list[Finished] = []

    @classmethod
    def configured(
        cls,
        path: str,
        rollout: RolloutSection,
        *,
        stop_ids: list[int],
        max_model_len: int,
        seed: int,
        deterministic: bool = False,
        emulation: Emulation | None = None,
    ) -> Self:
        if emulation is None:
            raise ConfigError('rollout.engine = "emulated" samples nothing: it is for `calopd run` only')
        return cls(emulation, stop_ids)

    def add(self, key: int, request: SampleRequest) -> None:
        self._requests[key] = request
        self._batch.add(key, self._length(request))

    def _length(self, request: SampleRequest) -> int:
        return min(self._emulation.response_length(request.seed), request.sampling.max_tokens)

    def step(self) -> list[Finished]:
        """Sample some tokens at once, as many as a GPU samples in a moment, or up to the next complete response."""
        most = CHUNK
        if self._emulation.scale:
            most = max(1, int(TICK_SECONDS / (self._emulation.scale * self._batch.token_seconds())))
        seconds, done = self._batch.advance(most if self._emulation.scale else 2**31)
        self._pacer.spend(seconds)
        finished = [self._finish(key) for key in done]
        if not self._emulation.phases:
            return finished
        self._held += finished
        released, self._held = ([], self._held) if self._batch else (self._held, [])
        return released

    def _finish(self, key: int) -> Finished:
        """A response of the right length that repeats a part of its prompt: any tokens of the vocabulary do."""
        request = self._requests.pop(key)
        length, limit = self._length(request), request.sampling.max_tokens
        ids = np.resize(request.prompt_ids[len(request.prompt_ids) // 2 :], length)
        if length < limit:
            ids[-1] = self._stop_ids[0]
        start = request.seed % (len(NOISE) - length)
        return Finished(key, ids, NOISE[start : start + length], truncated=length == limit)

    def abort(self, keys: set[int]) -> None:
        self._batch.remove(keys)
        for key in keys:
            self._requests.pop(key, None)

    def load(self, directory: Path) -> None:
        self._pacer.spend(self._emulation.load)
