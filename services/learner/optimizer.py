"""AdamW over the shards of a rank."""

import torch
from torch import nn

from calopd.config.sections import LearnerSection


def adamw(student: nn.Module, settings: LearnerSection, device: torch.device) -> torch.optim.AdamW:
    """AdamW of the parameters that are trained."""
    return torch.optim.AdamW(
        [parameter for parameter in student.parameters() if parameter.requires_grad],
        lr=settings.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=uses_fused(device.type),
    )


def uses_fused(device_type: str) -> bool | None:
    """Whether one kernel updates all parameters: on a GPU, also if the optimizer state is offloaded from it.

    None is the default of torch, which a run on a CPU keeps: its results repeat bit for bit.
    """
    return True if device_type == "cuda" else None
