"""[resources]: the GPUs of the host that each role uses."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo

from calopd.config.sections.base import Section

MOST_GPUS = 1_024
"""Of one host."""


def _choice(value: Any, info: ValidationInfo) -> int | tuple[int, ...] | None:
    """Refuse in one sentence all that is neither a number of GPUs nor a list of their ids."""
    if value is None:
        return None
    items = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in items):
        expected = "expected a number of GPUs such as 2, or their ids such as [0, 1]"
        raise ValueError(f"resources.{info.field_name}: {expected}, not {value!r}")
    if any(item > MOST_GPUS for item in items):
        raise ValueError(
            f"resources.{info.field_name}: {value!r} is more than the {MOST_GPUS} GPUs that a host may have"
        )
    if len(set(items)) < len(items):
        raise ValueError(f"resources.{info.field_name}: {list(items)} names a GPU twice")
    return (value if isinstance(value, int) else tuple(items)) or None


Gpus = Annotated[int | tuple[int, ...] | None, BeforeValidator(_choice)]
"""A number of GPUs, their ids, or None: not placed."""


def count_gpus(choice: Any) -> int:
    """How many GPUs a choice has, also one that is not validated yet."""
    if isinstance(choice, list | tuple):
        return len(choice)
    return max(choice, 0) if isinstance(choice, int) else 0


class ResourcesSection(Section):
    """The GPUs of the host that each role uses. `calopd run`, `tsd collect` and the compose file all follow it. A
    number takes that many GPUs: the lowest ones that no list names, in the order teacher, rollout, learner. A list
    names them; two roles that name the same GPU share it. Ids count the visible GPUs from 0, in the order of
    nvidia-smi. A role that is not set, or 0, is not placed: it uses the GPUs that it finds, or else the CPU."""

    gpu: str = ""
    """The GPU that the file is written for, such as `"h100"`: what fits is computed for it; empty = not stated."""
    host_gpus: int = Field(default=0, ge=0)
    """Number of GPUs of the host that the file is written for: placing a role beyond it is refused; 0 = not stated."""
    teacher: Gpus = None
    """GPUs of the teachers: one replica on every `teacher.tensor_parallel_size` of them."""
    rollout: Gpus = None
    """GPUs of the rollouts: one replica on every `rollout.tensor_parallel_size` of them."""
    learner: Gpus = None
    """GPUs of the learner: one rank on each."""
