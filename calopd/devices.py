"""Where to compute: the same code on CPU and GPU, chosen by one setting."""

import os

import torch


def choose_device(setting: str) -> torch.device:
    """`auto` = this process's GPU where there is one, else the CPU."""
    if setting != "auto":
        return torch.device(setting)
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def set_threads(count: int) -> None:
    """CPU threads of this process; 0 leaves torch's choice."""
    if count:
        torch.set_num_threads(count)
