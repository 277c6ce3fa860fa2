"""The student under FSDP2: a causal language model whose LM head computes the objective in chunks."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers.modeling_layers import GradientCheckpointingLayer

from calopd.config.sections import LearnerSection
from calopd.core.lm_head import ForwardKL, HeadScores, policy_objective, score_targets
from calopd.models.devices import choose_device, dtype_name
from calopd.models.loading import load_causal_lm
from calopd.models.packing import Packed, use_packed_attention
from calopd.planning.learner_memory import stored_activations
from calopd.planning.model_shapes import shape_of
from services.learner.lora import add_adapters

MAX_STORED = 4 * 2**30
"""Bytes of activations that a CPU stores at most instead of computing them twice."""


@dataclass(frozen=True, slots=True)
class HeadObjective:
    """The computation of the LM head in a pass that learns."""

    coefficients: Callable[[slice, Tensor], Tensor]
    """The factor of each token's log-probability, from a chunk of tokens and their log-probabilities."""
    forward_kl: ForwardKL | None = None
    top_k: int = 0


class Student(nn.Module):
    """A causal language model whose forward pass is the objective of a micro-batch."""

    def __init__(
        self, lm: nn.Module, chunk: int, lora_scale: float | None = None, stored_tokens: float = math.inf
    ) -> None:
        super().__init__()
        self.lm: Any = lm
        self.lora_scale = lora_scale
        """alpha / rank of its adapters; None if all parameters are trained."""
        self._chunk, self._stored_tokens = chunk, stored_tokens
        self._layers = [module for module in lm.modules() if isinstance(module, GradientCheckpointingLayer)]

    def _choose_recomputation(self, tokens: int) -> None:
        """Recompute activations in the backward pass of micro-batches that are too long to store them."""
        for layer in self._layers:
            layer.gradient_checkpointing = tokens > self._stored_tokens

    def forward(
        self, packed: Packed, rows_T: Tensor, targets_T: Tensor, objective: HeadObjective | None = None
    ) -> tuple[Tensor, HeadScores]:
        """sum_t c_t log pi(targets_t), read at `rows_T` of the hidden states; without an objective, only the scores."""
        self._choose_recomputation(packed.computed)
        hidden = self.lm.model(
            input_ids=packed.ids, position_ids=packed.positions, use_cache=False, packed=packed
        ).last_hidden_state[0]
        hidden, weight = hidden.index_select(0, rows_T), self.lm.lm_head.weight
        if objective is None:
            return hidden.new_zeros(()), score_targets(hidden, weight, targets_T, rows=self._chunk)
        return policy_objective(
            hidden,
            weight,
            targets_T,
            objective.coefficients,
            forward_kl=objective.forward_kl,
            top_k=objective.top_k,
            rows=self._chunk,
        )


def load_student(
    path: str, settings: LearnerSection, compute_dtype: torch.dtype = torch.float32, *, frozen: bool = False
) -> Student:
    """Load the initial student, with adapters if the settings ask for them.

    Weights that are trained are float32. Those that are not stay in `compute_dtype`, in which they are used.
    """
    lora = settings.lora_rank > 0
    lm = load_causal_lm("student.path", path, compute_dtype if lora or frozen else torch.float32)
    use_packed_attention("student.path", lm)
    lora_scale = None
    if lora:
        add_adapters(lm, settings)
        lora_scale = settings.lora_alpha / settings.lora_rank
    if settings.recompute_activations:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    lm.train()
    return Student(lm, settings.chunk, lora_scale, _stored_tokens(settings, lm.config, compute_dtype))


def _stored_tokens(settings: LearnerSection, config: Any, compute_dtype: torch.dtype) -> float:
    """Tokens of the largest micro-batch whose activations are stored rather than computed twice."""
    if settings.recompute_activations != "auto":
        return 0.0 if settings.recompute_activations else math.inf
    shape = shape_of(config.to_dict())
    several = dist.is_initialized() and dist.get_world_size() > 1
    if shape is None or several or choose_device(settings.device).type == "cuda":
        return 0.0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(MAX_STORED, memory / 4) / stored_activations(shape, dtype_name(compute_dtype))


def shard(
    student: Student, mesh: DeviceMesh, compute_dtype: torch.dtype, *, offload: bool = False, compiled: bool = False
) -> None:
    """Shard each decoder layer on its own; embeddings, norm and LM head belong to the root.

    With `offload`, shards, their gradients and the optimizer state are kept in the memory of the host. With `compiled`,
    each layer is compiled before it is sharded, so that the gathers of FSDP stay outside of the compiled code.
    """
    policy = MixedPrecisionPolicy()
    if compute_dtype != torch.float32:
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    offload_policy = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if offload else OffloadPolicy()
    # FSDP copies the weights of a single rank too. Kept until the backward pass, they are copied once.
    alone = mesh.size() == 1 and compute_dtype == torch.float32 and not offload
    for layer in student.lm.model.layers:
        if compiled:
            layer.compile()
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=offload_policy, reshard_after_forward=not alone)
    fully_shard(student, mesh=mesh, mp_policy=policy, offload_policy=offload_policy)
