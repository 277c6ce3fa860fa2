"""Memory that each process of a run needs on its GPUs, by the settings of the run."""

from dataclasses import dataclass

from calopd.config import Config
from calopd.core.activity import Role
from calopd.planning.gpus import GIB
from calopd.planning.inference_memory import cached_tokens, torch_teacher_memory, vllm_memory
from calopd.planning.learner_memory import LearnerWork, learner_memory
from calopd.planning.memory_terms import Memory, dtype_bytes
from calopd.planning.model_shapes import ModelShape, load_shape
from calopd.planning.rollout_limits import rollout_work
from calopd.planning.teacher_limits import teacher_shape, teacher_work
from calopd.planning.workload import learner_tokens, longest_rollout, teacher_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Memory of one kind of process on each of its GPUs."""

    memory: Memory
    share: float | None = None
    """Share of the GPU that the process takes at its start, whatever it needs; None = only what it needs."""
    communicates: bool = False
    """Whether it exchanges tensors with other GPUs."""


def role_need(config: Config, role: Role) -> Need | None:
    """The need of a role; None if its model or its engine is not known here."""
    shape = teacher_shape(config) if role == "teacher" else load_shape(config.student.path)
    if shape is None:
        return None
    needs = {"teacher": _teacher, "rollout": _rollout, "learner": _learner}
    return needs[role](config, shape)


def _teacher(config: Config, shape: ModelShape) -> Need:
    teacher = config.teacher
    compute = dtype_bytes(teacher.dtype)
    if teacher.engine == "torch":
        memory = torch_teacher_memory(
            shape,
            tokens=teacher_tokens(config),
            compute=compute,
            tile=(teacher.chunk, teacher.tile),
            entropy=config.method.method.forward_kl is not None,
        )
        return Need(memory=memory)
    work = teacher_work(config)
    return Need(
        memory=vllm_memory(shape, work, compute), share=teacher.gpu_memory_utilization, communicates=work.gpus > 1
    )


def _rollout(config: Config, shape: ModelShape) -> Need | None:
    rollout, work = config.rollout, rollout_work(config)
    if rollout.engine != "vllm":
        return None
    memory = vllm_memory(shape, work, dtype_bytes(rollout.dtype))
    return Need(memory=memory, share=rollout.gpu_memory_utilization, communicates=work.gpus > 1)


def rollout_sequences(config: Config, gpu_gib: float) -> int | None:
    """Responses of the greatest length that a rollout replica holds at once on GPUs of this memory."""
    shape = load_shape(config.student.path)
    if shape is None or config.rollout.engine != "vllm":
        return None
    return rollout_cache(config, shape, gpu_gib) // longest_rollout(config)


def rollout_cache(config: Config, shape: ModelShape, gpu_gib: float) -> int:
    """Tokens that the KV cache of a rollout replica holds on GPUs of this memory."""
    share = config.rollout.gpu_memory_utilization * gpu_gib * GIB
    return cached_tokens(shape, rollout_work(config), dtype_bytes(config.rollout.dtype), share)


def learner_work(config: Config) -> LearnerWork:
    """The computation of a rank of the learner."""
    return LearnerWork(
        ranks=len(config.placement.learner) or config.learner.ranks,
        tokens=learner_tokens(config),
        reference=config.method.method.uses_reference,
    )


def _learner(config: Config, shape: ModelShape) -> Need:
    work = learner_work(config)
    return Need(memory=learner_memory(shape, config.learner, work), communicates=work.ranks > 1)
