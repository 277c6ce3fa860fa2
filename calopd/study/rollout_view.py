"""Rollouts of the study page: selection, and encoding for the page's script."""

import base64
import random
from pathlib import Path
from typing import Any

import numpy as np

from calopd.core.errors import ConfigError
from calopd.study.shards import ScoredRollout, Study, StudyRollout

PAGE_TOKENS = 250_000
"""Maximum number of tokens over all shown rollouts: about 16 MB of the page."""

Place = tuple[Path, int, StudyRollout]


def choose(study: Study, chosen: list[int], count: int) -> list[Place]:
    """The rollouts with the chosen indices, or a seeded sample: the longest, then correct and wrong ones in turn."""
    places = {place[2].index: place for place in study.rollouts()}
    if unknown := [index for index in chosen if index not in places]:
        raise ConfigError(
            f"no rollout {unknown[0]} in {study.directory}: it has {len(places)} rollouts, "
            f"with indices from {min(places)} to {max(places)}"
        )
    if chosen:
        return [places[index] for index in chosen]
    drawn = random.Random("tsd-page").sample(list(places.values()), len(places))
    right, wrong = ([place for place in drawn if bool(place[2].correct) is side] for side in (True, False))
    turns = [place for pair in zip(right, wrong, strict=False) for place in pair]
    order = [max(drawn, key=lambda place: place[2].tokens), *turns, *right[len(wrong) :], *wrong[len(right) :]]
    kept: dict[int, Place] = {}
    tokens = 0
    for place in order:
        tokens += place[2].tokens
        if len(kept) < count and (tokens <= PAGE_TOKENS or not kept):
            kept.setdefault(place[2].index, place)
    return sorted(kept.values(), key=lambda place: place[2].index)


def packed(scored: ScoredRollout, texts: list[str]) -> dict[str, Any]:
    """A rollout as JSON: metadata, distinct token texts, and base64 arrays of token indices and log-probabilities."""
    distinct, which = np.unique(scored.token_ids, return_inverse=True)
    rollout = scored.rollout
    return {
        "index": rollout.index,
        "problem_id": rollout.problem_id,
        "problem": rollout.problem,
        "answer": rollout.answer,
        "correct": rollout.correct,
        "truncated": rollout.truncated,
        "count": rollout.tokens,
        "texts": [texts[number] for number in distinct],
        "tokens": _base64(which.astype("<i4")),
        "student": _base64(scored.student_logprobs.astype("<f4")),
        "teacher": [_base64(row.astype("<f4")) for row in scored.teacher_logprobs],
    }


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()
