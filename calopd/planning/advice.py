"""Changes of settings that would make a role fit, found by computing its memory again."""

from collections.abc import Callable, Iterator
from typing import Any

from calopd.config import Config
from calopd.core.activity import Role
from calopd.planning.rollout_limits import rollout_limits
from calopd.planning.workload import longest_sampled, longest_scored

ALTERNATIVES = 3
"""Alternatives that are named at most."""
LORA_RANK = 64
"""Rank of the adapters that are suggested, the paper's for ExOPD."""

Change = tuple[str, Config]
"""A change in words, and the configuration with it."""


def advise(config: Config, role: Role, fits: Callable[[Config], bool]) -> str:
    """The first changes that make the role fit, each on its own, cheapest first."""
    found = []
    kinds: set[str] = set()
    for words, changed in _changes(config, role):
        kind = words.split(" ")[0]
        if kind not in kinds and _can_be_placed(changed) and fits(changed):
            kinds.add(kind)
            found.append(words)
        if len(found) == ALTERNATIVES:
            break
    if not found:
        return "no single setting makes it fit: use a larger GPU, more GPUs or a smaller model"
    return "use " + ", or ".join(found)


def _can_be_placed(config: Config) -> bool:
    """Whether the host has the GPUs: more ranks need more of them."""
    try:
        return bool(config.placement)
    except ValueError:
        return False


def _changes(config: Config, role: Role) -> Iterator[Change]:
    if role == "learner":
        yield from _learner_changes(config)
    elif role == "teacher":
        yield from _teacher_changes(config)
    else:
        yield from _rollout_changes(config)


def _learner_changes(config: Config) -> Iterator[Change]:
    learner = config.learner
    yield from _smaller(config, "learner", "micro_batch_tokens", learner.micro_batch_tokens, longest_sampled(config))
    yield from _smaller(config, "learner", "chunk", learner.chunk, 256)
    if not learner.recompute_activations:
        yield _set(config, "learner", "recompute_activations", True)
    ranks = len(config.placement.learner) or learner.ranks
    if not isinstance(config.resources.learner, tuple):
        for more in range(ranks + 1, 4 * ranks + 1):
            section, key = ("resources", "learner") if config.placement.learner else ("learner", "ranks")
            yield f"{section}.{key} = {more} ({more} ranks)", _with(config, section, {key: more})
    if not learner.lora_rank:
        yield _set(config, "learner", "lora_rank", LORA_RANK)
    if not learner.offload_optimizer:
        yield _set(config, "learner", "offload_optimizer", True)


def _teacher_changes(config: Config) -> Iterator[Change]:
    teacher = config.teacher
    floor = longest_scored(config) if teacher.engine == "torch" else 2_048
    yield from _smaller(config, "teacher", "batch_tokens", teacher.batch_tokens, floor)
    if teacher.engine == "vllm" and teacher.gpu_memory_utilization < 0.92:
        yield _set(config, "teacher", "gpu_memory_utilization", 0.92)
    for gpus in (2, 4):
        values = {"engine": "vllm", "tensor_parallel_size": gpus * teacher.tensor_parallel_size}
        words = f'teacher.engine = "vllm" with teacher.tensor_parallel_size = {values["tensor_parallel_size"]}'
        if isinstance(config.resources.teacher, int) and config.resources.teacher % gpus == 0:
            yield words, _with(config, "teacher", values)
    yield (
        'teacher.quantization = "fp8" with the vLLM engine',
        _with(config, "teacher", {"engine": "vllm", "quantization": "fp8"}),
    )


def _rollout_changes(config: Config) -> Iterator[Change]:
    rollout = config.rollout
    if rollout.gpu_memory_utilization < 0.92:
        yield _set(config, "rollout", "gpu_memory_utilization", 0.92)
    limits = rollout_limits(config)
    yield from _smaller(config, "rollout", "max_num_batched_tokens", limits.max_num_batched_tokens, 2_048)
    yield from _smaller(config, "rollout", "max_in_flight", limits.max_in_flight, 16)
    yield from _smaller(config, "rollout", "max_tokens", rollout.max_tokens, 1_024)
    for gpus in (2, 4):
        if isinstance(config.resources.rollout, int) and config.resources.rollout % gpus == 0:
            yield _set(config, "rollout", "tensor_parallel_size", gpus * rollout.tensor_parallel_size)


def _smaller(config: Config, section: str, key: str, value: int, least: int) -> Iterator[Change]:
    """Half of a value, a quarter and so on, and at last `least`."""
    while value > least:
        value = max(value // 2, least)
        yield _set(config, section, key, value)


def _set(config: Config, section: str, key: str, value: Any) -> Change:
    shown = str(value).lower() if isinstance(value, bool) else value
    return f"{section}.{key} = {shown}", _with(config, section, {key: value})


def _with(config: Config, section: str, values: dict[str, Any]) -> Config:
    changed = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: changed})
