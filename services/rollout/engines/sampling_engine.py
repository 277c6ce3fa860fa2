"""The interface of a sampling engine: a model that generates many responses at once, one token of each per step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from calopd.config.sections import RolloutSection
from calopd.core.types import Sampling


@dataclass(frozen=True, slots=True)
class SampleRequest:
    prompt_ids: np.ndarray
    sampling: Sampling
    seed: int
    policy_version: int | None = None
    """Sample from this policy only; None = from the loaded one, whichever it is."""
    policy_sha256: str | None = None
    """Sample from these weights only; None = from whichever have the version."""
    preemptible: bool = False
    """May be dropped before it is complete if a more urgent request arrives."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A complete response."""

    key: int
    response_ids: np.ndarray
    """int32 [T]."""
    logprobs: np.ndarray
    """float32 [T], at temperature 1."""
    truncated: bool


class SamplingEngine(Protocol):
    """Used by one thread at a time."""

    name: str

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
    ) -> "SamplingEngine":
        """Load the model at `path` with the settings of [rollout].

        With `deterministic`, no bit of a response may depend on the requests beside it or before it.
        """
        ...

    def add(self, key: int, request: SampleRequest) -> None:
        """Accept a request; `key` identifies it in `step` and `abort`."""
        ...

    def step(self) -> list[Finished]:
        """Generate one token of each response; return the responses that are complete."""
        ...

    def abort(self, keys: set[int]) -> None:
        """Drop these requests."""
        ...

    def load(self, directory: Path) -> None:
        """Load the weights of a verified policy. Called only while no request is running."""
        ...
