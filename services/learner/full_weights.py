"""The whole student, gathered one tensor at a time: for policies and for the exported model."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from calopd.models.adapters import BASE_LAYER, adapters_of, is_adapter, merge
from calopd.rundir.tensor_files import TensorSpec, TensorStream, aligned
from services.learner.student import Student

Weights = Mapping[str, Tensor]


def full_weights(student: Student, dtype: torch.dtype) -> TensorStream:
    """All weights by Hugging Face names, adapters merged, in `dtype`. Every rank must read the stream to its end.

    Each rank casts its shard before the gather, which halves the bytes, and rank 0 holds one whole tensor at a time.
    """
    state: Weights = {name.removeprefix("lm."): tensor for name, tensor in student.state_dict().items()}
    tied = student.lm.config.tie_word_embeddings
    sources = {
        name.replace(BASE_LAYER, "."): name
        for name in state
        if not is_adapter(name) and not (tied and name == "lm_head.weight")
    }
    specs = aligned(_spec(name, state[source], dtype) for name, source in sources.items())
    return TensorStream(specs, _gathered_each(state, specs, sources, student.lora_scale))


def _spec(name: str, tensor: Tensor, dtype: torch.dtype) -> TensorSpec:
    return TensorSpec(name, dtype if tensor.is_floating_point() else tensor.dtype, tuple(tensor.shape))


def _gathered_each(
    state: Weights, specs: list[TensorSpec], sources: Mapping[str, str], lora_scale: float | None
) -> Iterator[Tensor]:
    for spec in specs:
        source = sources[spec.name]
        whole = state[source]
        with torch.no_grad():
            if lora_scale is not None and (pair := adapters_of(source)) is not None:
                down, up = (state[name] for name in pair)
                whole = _merged(whole, down, up, lora_scale)
            whole = _gathered(whole, spec.dtype)
        yield whole


def _merged(weight: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
    """W + scale * B A. FSDP shards W and B alike, by output rows: each rank merges its own rows."""
    if not isinstance(weight, DTensor) or not isinstance(up, DTensor):
        return merge(weight, down, up, scale)
    assert weight.placements == up.placements
    rows = merge(_local(weight), _gathered(down, down.dtype), _local(up), scale)
    return _like(weight, rows)


def _gathered(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The whole tensor, on every rank, from shards that are cast first."""
    if not isinstance(tensor, DTensor):
        return tensor.to(dtype)
    whole: Tensor = _like(tensor, _local(tensor).to(dtype)).full_tensor()
    return whole


def _local(tensor: DTensor) -> Tensor:
    """This rank's shard on the device of the ranks: with `learner.offload_optimizer` it is kept on the CPU."""
    return tensor.to_local().to(tensor.device_mesh.device_type)


def _like(tensor: DTensor, local: Tensor) -> DTensor:
    return DTensor.from_local(
        local, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
