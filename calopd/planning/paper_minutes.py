"""The paper's minutes per step, for runs with its settings."""

from calopd.config import Config
from calopd.core.paper_results import MINUTES

TRAJECTORIES, MAX_TOKENS, CONTEXTS = 256, 16_384, {"cal_opd": 3, "opd": 1}
"""Settings of the paper that the time of a step depends on."""


def paper_minutes(config: Config) -> float | None:
    """The paper's minutes per step on 8 H20; None if it has none for this pair, method and settings."""
    pair, method = (_name(config.student.path), _name(config.teacher.path)), config.method.name
    minutes = MINUTES.get(pair, {}).get(method)
    given = config.learner.trajectories, config.rollout.max_tokens, len(config.method.scored_contexts())
    same = given == (TRAJECTORIES, MAX_TOKENS, CONTEXTS.get(method)) and not config.learner.lora_rank
    return minutes if same else None


def _name(path: str) -> str:
    return path.rpartition("/")[2]
