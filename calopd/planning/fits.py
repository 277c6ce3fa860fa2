"""Whether every role fits its GPUs, and what to change if one does not."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from calopd.config import Config
from calopd.core.activity import Role
from calopd.planning.advice import advise
from calopd.planning.gpus import CONTEXT_GIB, gpu_named, usable_gib
from calopd.planning.role_needs import Need, role_need

SPARE = 0.10
"""Share of the usable memory that a recipe leaves free, for what arithmetic does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFit:
    """One process, on each of its GPUs."""

    role: Role
    replica: int
    """Number of the replica, or of the rank of the learner."""
    gpus: tuple[int, ...]
    needed_gib: float | None
    """None = not known."""
    usable_gib: float | None
    """Memory that is left for this process, after what others on the same GPU need."""
    fits: bool | None
    """None = not checked; the advice says why."""
    spare: float | None
    """Share of the usable memory of the fullest of its GPUs that stays free."""
    advice: str
    """Settings that would make it fit, or why it was not checked; empty if it fits."""
    breakdown: Mapping[str, float]
    """GiB by purpose, largest first."""

    @property
    def name(self) -> str:
        return f"{self.role} {'rank ' if self.role == 'learner' else ''}{self.replica}"

    def __str__(self) -> str:
        if self.fits is None:
            return f"{self.name}: not checked: {self.advice}"
        text = f"{self.name}: {self.needed_gib:.1f} GiB of {self.usable_gib:.1f} usable"
        return f"{text}: {self.advice}" if self.advice else text


def processes(config: Config) -> Iterator[tuple[Role, int, tuple[int, ...]]]:
    """Every placed process: role, number, GPU ids."""
    placement = config.placement
    yield from (("teacher", i, gpus) for i, gpus in enumerate(placement.teachers))
    yield from (("rollout", i, gpus) for i, gpus in enumerate(placement.rollouts))
    yield from (("learner", i, (gpu,)) for i, gpu in enumerate(placement.learner))


def gpu_memory(config: Config, gpu_gib: float | None = None) -> float | None:
    """Memory of a GPU: the given one, or that of `resources.gpu`; None if it is not stated."""
    if gpu_gib is not None or not config.resources.gpu:
        return gpu_gib
    return gpu_named(config.resources.gpu).memory_gib


def role_fits(config: Config, gpu_gib: float | None = None) -> tuple[RoleFit, ...]:
    """The memory of every placed process against its GPUs; `gpu_gib` is what CUDA reports, if it is known."""
    memory = gpu_memory(config, gpu_gib)
    placed = list(processes(config))
    needs: dict[Role, Need | None] = {role: role_need(config, role) for role in {role for role, _, _ in placed}}
    if memory is None:
        why = "resources.gpu names no GPU"
        return tuple(_unchecked(role, number, gpus, needs[role], why) for role, number, gpus in placed)
    fits = []
    for role, number, gpus in placed:
        sharing = [r for r, _, theirs in placed if set(theirs) & set(gpus)]
        if unknown := [r for r in sharing if needs[r] is None]:
            fits.append(_unchecked(role, number, gpus, needs[role], _why_unknown(config, unknown[0])))
            continue
        fit = _fit(role, number, gpus, memory, {r: n for r, n in needs.items() if n}, sharing)
        fits.append(fit if fit.fits else replace(fit, advice=advise(config, role, _checker(role, number, memory))))
    return tuple(fits)


def _checker(role: Role, number: int, memory: float) -> Callable[[Config], bool]:
    """Whether this process would fit with other settings."""

    def fits(config: Config) -> bool:
        placed = list(processes(config))
        needs = {r: role_need(config, r) for r in {r for r, _, _ in placed}}
        gpus = next((gpus for r, n, gpus in placed if (r, n) == (role, number)), None)
        if gpus is None:  # fewer, larger replicas: the first one stands for all
            gpus = next(gpus for r, _, gpus in placed if r == role)
        sharing = [r for r, _, theirs in placed if set(theirs) & set(gpus)]
        return bool(_fit(role, number, gpus, memory, {r: n for r, n in needs.items() if n}, sharing).fits)

    return fits


def _fit(
    role: Role, number: int, gpus: tuple[int, ...], memory: float, needs: Mapping[Role, Need], sharing: list[Role]
) -> RoleFit:
    """`sharing` are the roles of all processes that use one of these GPUs, this one included."""
    own = needs[role]
    whole = usable_gib(memory, len(sharing), communicates=any(needs[r].communicates for r in sharing))
    left = whole - sum(taken_gib(needs[r], memory) for r in sharing) + taken_gib(own, memory)
    # vLLM counts the context of its process as part of its share.
    usable = left if own.share is None else min(left, own.share * memory - CONTEXT_GIB)
    needed = own.memory.gib
    return RoleFit(
        role=role,
        replica=number,
        gpus=gpus,
        needed_gib=needed,
        usable_gib=usable,
        fits=needed <= usable and taken_gib(own, memory) <= left,
        spare=_spare(own, needed, usable, left, whole, memory, shared=len(sharing) > 1),
        advice="",
        breakdown=own.memory.breakdown(),
    )


def _spare(own: Need, needed: float, usable: float, left: float, whole: float, memory: float, *, shared: bool) -> float:
    """The share that stays free: of the GPU if it is shared, and of the share of an engine that takes one."""
    spare = (usable - needed) / usable if own.share is not None or not shared else 1.0
    return min(spare, (left - taken_gib(own, memory)) / whole) if shared else spare


def taken_gib(need: Need, memory: float) -> float:
    """Memory of a GPU that a process takes: its peak, or the share that it takes at its start."""
    return need.memory.gib if need.share is None else need.share * memory - CONTEXT_GIB


def _unchecked(role: Role, number: int, gpus: tuple[int, ...], need: Need | None, why: str) -> RoleFit:
    return RoleFit(
        role=role,
        replica=number,
        gpus=gpus,
        needed_gib=need.memory.gib if need else None,
        usable_gib=None,
        fits=None,
        spare=None,
        advice=why,
        breakdown=need.memory.breakdown() if need else {},
    )


def _why_unknown(config: Config, role: Role) -> str:
    path = config.teacher.path if role == "teacher" else config.student.path
    if role == "rollout" and config.rollout.engine != "vllm":
        return "the torch sampler is for tests"
    return f"the config.json of {path} is not on this machine, or its architecture is not known (run calopd download)"
