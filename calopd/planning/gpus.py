"""GPUs by name, and the share of their memory that tensors of one process can use.

Memory is what CUDA reports to a process (`torch.cuda.get_device_properties`): about 0.5 GiB less than nvidia-smi shows,
which is 40,960 and 81,920 MiB for the A100s, 81,559 for H100, 143,771 for H200, 97,871 for H20, 183,359 for B200,
46,068 for L40S and 24,564 for RTX 4090. Bandwidth and FLOP/s are those of NVIDIA's data sheets, without sparsity (SXM
versions of A100, H100, H200 and B200).
"""

from dataclasses import dataclass

from calopd.config.nearest import nearest
from calopd.core.errors import ConfigError

GIB = 2**30

CONTEXT_GIB = 0.6
"""CUDA context, kernels and cuBLAS workspaces of one process."""
NCCL_GIB = 0.8
"""NCCL's buffers in a process that exchanges tensors with others."""
FRAGMENTATION = 0.03
"""Share of the memory that the caching allocator cannot hand out, with expandable segments."""


@dataclass(frozen=True, slots=True)
class GPU:
    name: str
    memory_gib: float
    """Memory that CUDA reports."""
    bandwidth_gb: float
    """Memory bandwidth, GB/s."""
    tflops: float
    """Dense bf16 FLOP/s of the tensor cores, in 10^12."""


def usable_gib(memory_gib: float, processes: int = 1, *, communicates: bool = False) -> float:
    """Memory of a GPU that is left for the tensors of the processes on it."""
    reserved = processes * CONTEXT_GIB + (NCCL_GIB if communicates else 0.0)
    return memory_gib * (1 - FRAGMENTATION) - reserved


GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("a100-40", 39.4, 1555, 312),
        GPU("a100", 79.1, 2039, 312),
        GPU("h100", 79.1, 3350, 989),
        GPU("h200", 139.8, 4800, 989),
        GPU("h20", 95.0, 4000, 148),
        GPU("b200", 178.3, 8000, 2250),
        GPU("l40s", 44.4, 864, 362),
        GPU("4090", 23.6, 1008, 165),
    )
}
"""Name, as in `resources.gpu` -> GPU."""


def gpu_named(name: str) -> GPU:
    """The GPU of this name in any case; an unknown one is refused."""
    if name.lower() not in GPUS:
        raise ConfigError(f"the GPU {name!r} is not in the table{nearest(name.lower(), GPUS)}")
    return GPUS[name.lower()]
