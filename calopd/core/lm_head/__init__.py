"""The LM head in parts: log-probabilities and gradients without ever holding [T, V]."""

from calopd.core.lm_head.policy_gradient import ForwardKL, policy_objective
from calopd.core.lm_head.scores import HeadScores, score_logits, score_targets
from calopd.core.lm_head.sharded import score_sharded

__all__ = [
    "ForwardKL",
    "HeadScores",
    "policy_objective",
    "score_logits",
    "score_sharded",
    "score_targets",
]
