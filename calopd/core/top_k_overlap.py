"""How far the most likely tokens of teacher and student agree."""

import torch
from torch import Tensor

from calopd.core.lm_head import HeadScores


def top_k_overlap(teacher_ids: Tensor, teacher_logprobs: Tensor, student: HeadScores) -> tuple[Tensor, Tensor]:
    """Per token [T]: |Top_T & Top_S| / K, and the sum over the intersection of min(p_T, p_S), not renormalised."""
    assert student.top_ids is not None
    assert student.top_logprobs is not None
    shared_TKK = teacher_ids[:, :, None] == student.top_ids[:, None, :]
    least = torch.minimum(teacher_logprobs.exp()[:, :, None], student.top_logprobs.exp()[:, None, :])
    return shared_TKK.any(2).float().mean(1), (least * shared_TKK).sum((1, 2))
