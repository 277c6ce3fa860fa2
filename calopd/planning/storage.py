"""Sizes outside of the GPUs: policies, checkpoints, memory of the host."""

from calopd.config import Config
from calopd.planning.learner_memory import adapter_parameters
from calopd.planning.memory_terms import dtype_bytes
from calopd.planning.model_shapes import ModelShape, load_shape

OTHER_FILES = 10 * 10**9
"""Room for logs, trajectories and reports of a run, in bytes."""
PROCESS_GIB = 4
"""Memory of the host that a process with CUDA, torch and its libraries needs besides tensors."""


def policy_bytes(config: Config) -> int | None:
    """Bytes of one published policy: the student in the rollout's data type; None if its shape is not known."""
    shape = load_shape(config.student.path)
    return None if shape is None else shape.parameters * dtype_bytes(config.rollout.dtype)


def policies_bytes(config: Config) -> int | None:
    """Bytes of all policies that exist at once: those kept, one being written, one that an evaluation may need.

    The deltas since a snapshot have at most half of its size. Two such chains may exist, and a third for an evaluation.
    """
    one = policy_bytes(config)
    if one is None:
        return None
    evaluated = 1 if config.evaluation.problems else 0
    kept = max(config.learner.keep_policies, config.run.max_staleness + 1)
    deltas = 0 if config.learner.snapshot_every == 1 else (min(kept, 2) + evaluated) * one // 2
    return (kept + 1 + evaluated) * one + deltas


def policy_copy_bytes(config: Config) -> int | None:
    """Bytes of the policy that the learner, and every rollout, keeps to form deltas from or to apply them to."""
    return 0 if config.learner.snapshot_every == 1 else policy_bytes(config)


def checkpoint_bytes(config: Config) -> int | None:
    """Bytes of a checkpoint: float32 weights and two moments of what is trained, and frozen weights."""
    shape = load_shape(config.student.path)
    if shape is None:
        return None
    frozen = dtype_bytes(config.learner.compute_dtype) * shape.parameters if config.learner.lora_rank else 0
    return frozen + 12 * trained_parameters(config, shape)


def trained_parameters(config: Config, shape: ModelShape) -> int:
    """Parameters that the optimizer changes: all, or those of the adapters."""
    if not config.learner.lora_rank:
        return shape.parameters
    return shape.layers * adapter_parameters(shape, config.learner)


def disk_bytes(config: Config) -> int | None:
    """Bytes that the run directory needs: checkpoints kept and one being written, the exported model, the rest."""
    shape, checkpoint = load_shape(config.student.path), checkpoint_bytes(config)
    if shape is None or checkpoint is None:
        return None
    return (config.learner.keep_checkpoints + 1) * checkpoint + 4 * shape.parameters + OTHER_FILES


def learner_host_bytes(config: Config) -> int | None:
    """Memory of the host that all ranks of a learner need: copies of a checkpoint and a policy, a model being loaded.

    Every rank loads the whole student in float32 before it keeps its shard.
    """
    shape, checkpoint, copy = load_shape(config.student.path), checkpoint_bytes(config), policy_copy_bytes(config)
    if shape is None or checkpoint is None or copy is None:
        return None
    ranks = config.learner.ranks
    state = 16 * trained_parameters(config, shape) if config.learner.offload_optimizer else 0
    return max(checkpoint + state + copy, ranks * 4 * shape.parameters) + ranks * PROCESS_GIB * 2**30
