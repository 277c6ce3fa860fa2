"""The KV cache of a vLLM engine on a GPU that another role uses too.

By itself vLLM takes what its share of the GPU leaves, as it measures it while it starts. Beside another role, it would
count as its own what that role allocates meanwhile.
"""

from typing import get_args

from calopd.config import Config
from calopd.core.activity import Role
from calopd.core.options import Dtype
from calopd.planning.gpus import CONTEXT_GIB, GIB, GPUS
from calopd.planning.inference_memory import EngineWork, cached_tokens, token_bytes
from calopd.planning.memory_terms import dtype_bytes
from calopd.planning.model_shapes import ModelShape


def shared_cache_gib(
    config: Config, role: Role, shape: ModelShape | None, work: EngineWork, *, dtype: Dtype, share: float
) -> float:
    """The KV cache on each GPU of `role`; 0 if no other role uses one of them, or if GPU or model are not known."""
    placement, gpu = config.placement, GPUS.get(config.resources.gpu.lower())
    others = {number for other in get_args(Role) if other != role for number in placement.of(other)}
    if shape is None or gpu is None or not others & {*placement.of(role)}:
        return 0.0
    compute, size = dtype_bytes(dtype), (share * gpu.memory_gib - CONTEXT_GIB) * GIB
    return cached_tokens(shape, work, compute, size) * token_bytes(shape, work, compute) / GIB
