"""Limits of the rollout's engine that follow from its GPU, unless the settings say otherwise."""

import statistics
from dataclasses import dataclass

from calopd.config import Config
from calopd.config.sections import RolloutSection
from calopd.planning.gpus import GIB, GPUS
from calopd.planning.inference_memory import EngineWork, cached_tokens, forward_activations
from calopd.planning.lengths import length_at
from calopd.planning.memory_terms import dtype_bytes
from calopd.planning.model_shapes import load_shape
from calopd.planning.prompt_lengths import PROMPT_TOKENS
from calopd.planning.shared_cache import shared_cache_gib
from calopd.planning.workload import longest_rollout

MOST_SEQUENCES, MOST_BATCHED_TOKENS = 256, 8_192
"""Also used if the GPU or the model is not known."""
ACTIVATIONS_SHARE = 0.05
"""Share of the engine's memory that the activations of one of its steps may take."""


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    max_in_flight: int
    """Responses that are sampled at once (vLLM's max_num_seqs): more would be preempted for want of KV cache."""
    max_num_batched_tokens: int


def rollout_limits(config: Config) -> RolloutLimits:
    """The limits that the settings give, and those that follow from `resources.gpu`."""
    rollout = config.rollout
    shape, gpu = load_shape(config.student.path), GPUS.get((config.emulation.gpu or config.resources.gpu).lower())
    sequences, tokens = rollout.max_in_flight, rollout.max_num_batched_tokens
    if shape is None or gpu is None:
        return RolloutLimits(sequences or MOST_SEQUENCES, tokens or MOST_BATCHED_TOKENS)
    compute, share = dtype_bytes(rollout.dtype), rollout.gpu_memory_utilization * gpu.memory_gib * GIB
    if not tokens:
        tokens = MOST_BATCHED_TOKENS
        while tokens > 2_048 and forward_activations(shape, tokens, compute) > ACTIVATIONS_SHARE * share:
            tokens //= 2
    if not sequences:
        work = EngineWork(
            gpus=rollout.tensor_parallel_size,
            tokens=tokens,
            longest=longest_rollout(config),
            logits_rows=MOST_SEQUENCES,
        )
        mean = statistics.mean(min(rollout.max_tokens, length_at((i + 0.5) / 256)) for i in range(256))
        held = cached_tokens(shape, work, compute, share) / (PROMPT_TOKENS + mean)
        sequences = max(1, min(MOST_SEQUENCES, int(held)))
    return RolloutLimits(sequences, tokens)


def rollout_work(config: Config) -> EngineWork:
    """The configuration of the rollout's engine."""
    rollout, limits = config.rollout, rollout_limits(config)
    return EngineWork(
        gpus=rollout.tensor_parallel_size,
        tokens=limits.max_num_batched_tokens,
        longest=longest_rollout(config),
        logits_rows=limits.max_in_flight,
    )


def limited_rollout(config: Config) -> RolloutSection:
    """The section [rollout] with its limits filled in."""
    rollout, limits = config.rollout, rollout_limits(config)
    shape, share = load_shape(config.student.path), rollout.gpu_memory_utilization
    size = shared_cache_gib(config, "rollout", shape, rollout_work(config), dtype=rollout.dtype, share=share)
    update = {
        "max_in_flight": limits.max_in_flight,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "kv_cache_gib": rollout.kv_cache_gib or size,
    }
    return rollout.model_copy(update=update)
