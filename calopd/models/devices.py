"""Selection of device, data type and threads, and the environment that CUDA and vLLM need.

torch is imported inside the functions, so that an entry point can set the environment first and `--help` stays instant.
"""

import os
import shutil
from typing import TYPE_CHECKING

from calopd.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

FORK_SAFETY = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""vLLM starts its engine as a process of its own. A forked one cannot use CUDA if its parent has asked CUDA anything:
processes are spawned instead, and torch asks the driver (NVML) whether there are GPUs."""
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
"""torch asks the kernel for huge pages for tensors on the CPU: page faults on new tensors cost more than many of the
operations on them."""
GROWING_BLOCKS = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""Blocks of GPU memory that grow, because batches differ in length: for learner and torch teacher, not for vLLM. torch
reads it when it is imported."""

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1"}
"""Processes of one host communicate without authentication: over an interface that others cannot reach."""


def set_process_environment() -> None:
    """Set the environment of a process that uses torch; every entry point calls it before anything else."""
    for name, value in (FORK_SAFETY | HUGE_PAGES).items():
        os.environ.setdefault(name, value)


def let_blocks_grow() -> None:
    """Configure torch's allocator for a learner or a torch teacher; call this before torch is imported."""
    for name, value in GROWING_BLOCKS.items():
        os.environ.setdefault(name, value)


def keep_to_loopback() -> None:
    """Let the ranks of this process communicate over loopback; call this before they are connected."""
    os.environ.update(LOOPBACK)


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


def chosen_dtype(setting: str) -> str:
    """The name of the data type that a setting means on this machine, never `auto`."""
    return setting if setting != "auto" else dtype_name(choose_dtype(setting, choose_device("auto")))


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
    keep_to_loopback()  # an engine is on one host
    if not cuda_available():
        # A second process would be bound to a single core and take five times as long to start.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("OMP_NUM_THREADS", str(threads or os.cpu_count()))
        if shutil.which("g++") is None:
            # vLLM's sampler compiles a small function on its first call, and the images have no compiler.
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


def set_batch_invariant(key: str) -> None:
    """Let vLLM compute the same bits whatever else is in its batch; call this before importing vLLM.

    `key` is the setting that names the engine, for the error of a machine that cannot do it.
    """
    if not cuda_available():
        raise ConfigError(
            f'run.deterministic: vLLM has no batch-invariant mode on a CPU. Set {key} = "torch", or run.deterministic '
            "= false"
        )
    os.environ["VLLM_BATCH_INVARIANT"] = "1"
