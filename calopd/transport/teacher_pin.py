"""The teacher of a run, as it was at first contact: every replica is compared with it for the rest of the run."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

import numpy as np

from calopd.core.canary_scores import Agreement, tolerance
from calopd.core.errors import UnhealthyTeacher
from calopd.transport.v1 import teacher_scorer_pb2

PROMPT_TOKENS, RESPONSE_TOKENS = 8, 32
"""Of a canary that rollouts send: short, because answers are followed by one."""
CANARY = "canary"
"""Trajectory id and context of a canary."""
CANARIES = 4
APART = 5


@dataclass(frozen=True, slots=True)
class ShortCanary:
    prompt_ids: np.ndarray
    response_ids: np.ndarray


def is_canary(request: teacher_scorer_pb2.ScoreRequest) -> bool:
    """Whether a request is one of these: answers wait for it, so it is scored before the other requests."""
    size = len(request.response_ids) + sum(len(context.prompt_ids) for context in request.contexts)
    return request.trajectory_id == CANARY and size <= 4 * (PROMPT_TOKENS + RESPONSE_TOKENS)  # int32


def short_canaries(ids: np.ndarray) -> list[ShortCanary]:
    """Pieces of the canary text, sent in turn: a teacher that answers with earlier scores has another one's."""
    starts = range(0, APART * CANARIES, APART)
    return [
        ShortCanary(ids[i : i + PROMPT_TOKENS], ids[i + PROMPT_TOKENS : i + PROMPT_TOKENS + RESPONSE_TOKENS])
        for i in starts
    ]


@dataclass(frozen=True, slots=True)
class TeacherPin:
    revision: str
    dtype: str
    canaries: tuple[tuple[float, ...], ...]
    """Scores of the response of each canary."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, raw: bytes) -> "TeacherPin":
        values = json.loads(raw)
        return cls(values["revision"], values["dtype"], tuple(tuple(scores) for scores in values["canaries"]))

    def check(self, revision: str, dtype: str, number: int, scores: np.ndarray) -> None:
        """Raise UnhealthyTeacher if these scores of a canary are not those of the pinned teacher."""
        if revision != self.revision:
            raise UnhealthyTeacher(
                f"the replica has the revision {revision!r}, the run was started with {self.revision!r}: "
                "serve the same model, or start a new run"
            )
        expected, limits = np.array(self.canaries[number]), tolerance([self.dtype, dtype])
        if scores.shape != expected.shape:
            raise UnhealthyTeacher(f"{len(scores)} scores of a canary, {len(expected)} are pinned in the run")
        agreement = Agreement.between(scores, expected, limits.far)
        limits.check(agreement, "those that are pinned in the run")


Pinning = Callable[[TeacherPin], Awaitable[TeacherPin]]
"""Pin a teacher if none is pinned yet; returns the pinned one."""


def pinned_in_memory() -> Pinning:
    """Compare with the first replica that this process has met."""
    pins: list[TeacherPin] = []

    async def pin(found: TeacherPin) -> TeacherPin:
        if not pins:
            pins.append(found)
        return pins[0]

    return pin


@dataclass(frozen=True, slots=True)
class TeacherChecks:
    """How a client makes sure of its teacher."""

    canary_ids: np.ndarray
    """The tokens of the canary text."""
    pin: Pinning
    every_seconds: float
    """Time between two canaries of a replica that has nothing else to do."""
