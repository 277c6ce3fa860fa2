"""AdamW over the shards of a rank."""

import torch
from torch import nn

from calopd.config.sections import LearnerSection

FUSED = True
"""One pass over all values, also if the optimizer state is offloaded from a GPU; the loop of torch makes about ten."""


def adamw(student: nn.Module, settings: LearnerSection) -> torch.optim.AdamW:
    """AdamW of the parameters that are trained."""
    return torch.optim.AdamW(
        [parameter for parameter in student.parameters() if parameter.requires_grad],
        lr=settings.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=FUSED,
    )
