"""Selection of device, data type and threads, and the environment that CUDA and vLLM need.

torch is imported inside the functions, so that an entry point can set the environment first and `--help` stays instant.
"""

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FORK_SAFETY = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""vLLM starts its engine as a process of its own. A forked one cannot use CUDA if its parent has asked CUDA anything:
processes are spawned instead, and torch asks the driver (NVML) whether there are GPUs."""
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""torch asks the kernel for huge pages for tensors on the CPU: page faults on new tensors cost more than many of the
operations on them."""


def set_process_environment() -> None:
    """Set the environment of a process that uses torch; every entry point calls it before anything else."""
    for name, value in (FORK_SAFETY | HUGE_PAGES).items():
        os.environ.setdefault(name, value)


def cuda_available() -> bool:
    """Whether there is a GPU, asked without initialising CUDA; code outside this module asks here."""
    set_process_environment()
    import torch

    return torch.cuda.is_available()


def choose_device(setting: str) -> "torch.device":
    """The device of a setting; `auto` is the GPU of this rank if CUDA is available, else the CPU."""
    import torch

    if setting != "auto":
        return torch.device(setting)
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda_available() else torch.device("cpu")


def choose_dtype(setting: str, device: "torch.device") -> "torch.dtype":
    """The data type of a setting; `auto` is bfloat16 on a GPU and float32 on a CPU."""
    import torch

    if setting == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    chosen: torch.dtype = getattr(torch, setting)
    return chosen


def dtype_name(dtype: "torch.dtype") -> str:
    """The name of a data type in settings, in files and for vLLM: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def set_threads(count: int) -> None:
    """Set the number of CPU threads of this process; 0 keeps the default of torch."""
    if count:
        import torch

        torch.set_num_threads(count)


def set_vllm_environment(kv_cache_gib: int, threads: int) -> None:
    """Set the environment variables that vLLM reads at import; call this before importing vLLM."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(kv_cache_gib))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if not cuda_available():
        # A second process would be bound to a single core and take five times as long to start.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("OMP_NUM_THREADS", str(threads or os.cpu_count()))
        if shutil.which("g++") is None:
            # vLLM's sampler compiles a small function on its first call, and the images have no compiler.
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
