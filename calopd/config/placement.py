"""The GPUs of every process of a run, as `[resources]` places them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from calopd.config.sections import ResourcesSection
from calopd.config.sections.resources import count_gpus

Group = tuple[int, ...]
"""GPU ids of one process."""
ROLES = ("teacher", "rollout", "learner")
COUNTED = {"teacher": "replicas", "rollout": "replicas", "learner": "ranks"}
"""The setting of a role that says how many processes it has; it follows from the GPUs of a role that is placed."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPUs of each replica and rank; nothing for a role that is not placed."""

    teachers: tuple[Group, ...] = ()
    rollouts: tuple[Group, ...] = ()
    learner: Group = ()

    def of(self, role: str) -> Group:
        """The GPUs of all processes of a role."""
        groups = {"teacher": self.teachers, "rollout": self.rollouts, "learner": (self.learner,)}[role]
        return tuple(gpu for group in groups for gpu in group)

    @property
    def gpus(self) -> Group:
        """Every GPU that a role uses."""
        return tuple(sorted({gpu for role in ROLES for gpu in self.of(role)}))


def place(resources: ResourcesSection, teacher_gpus: int, rollout_gpus: int) -> Placement:
    """Lay out the roles; a teacher replica has `teacher_gpus` GPUs, a rollout replica `rollout_gpus`."""
    chosen = {role: getattr(resources, role) for role in ROLES}
    named = {gpu for choice in chosen.values() if isinstance(choice, tuple) for gpu in choice}
    free = (gpu for gpu in count() if gpu not in named)
    gpus = {
        r: choice if isinstance(choice, tuple) else tuple(islice(free, choice or 0)) for r, choice in chosen.items()
    }
    placement = Placement(
        tuple(_groups("teacher", gpus["teacher"], teacher_gpus)),
        tuple(_groups("rollout", gpus["rollout"], rollout_gpus)),
        gpus["learner"],
    )
    host = resources.host_gpus
    if host and placement.gpus and placement.gpus[-1] >= host:
        wanted = ", ".join(f"{role} {list(gpus[role])}" for role in ROLES if gpus[role])
        raise ValueError(
            f"resources places roles beyond the {host} GPUs of resources.host_gpus ({wanted}): give them fewer GPUs"
        )
    return placement


def _groups(role: str, gpus: Group, each: int) -> Iterator[Group]:
    if len(gpus) % each:
        raise ValueError(
            f"resources.{role} has {len(gpus)} GPUs, which {role}.tensor_parallel_size = {each} does not divide: "
            f"use a multiple of {each}"
        )
    yield from (gpus[start : start + each] for start in range(0, len(gpus), each))


def counts(values: Mapping[str, Any]) -> dict[str, int]:
    """How many replicas and ranks the GPUs of `[resources]` give, by role, from values that are not validated yet."""
    resources = values.get("resources", {})
    found = {}
    for role in ROLES:
        each = values.get(role, {}).get("tensor_parallel_size", 1)
        if (gpus := count_gpus(resources.get(role))) and isinstance(each, int) and each > 0:
            found[role] = gpus // each
    return found
