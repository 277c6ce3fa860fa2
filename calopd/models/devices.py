"""Device and thread selection for CPU and GPU."""

import os
import shutil

import torch


def choose_device(setting: str) -> torch.device:
    """The device of a setting; `auto` is the GPU of this rank if CUDA is available, else the CPU."""
    if setting != "auto":
        return torch.device(setting)
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def set_threads(count: int) -> None:
    """Set the number of CPU threads of this process; 0 keeps the default of torch."""
    if count:
        torch.set_num_threads(count)


def set_vllm_environment(kv_cache_gib: int, threads: int) -> None:
    """Set the environment variables that vLLM reads at import; call this before importing vLLM."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(kv_cache_gib))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if not torch.cuda.is_available():
        # A second process would be bound to a single core and take five times as long to start.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("OMP_NUM_THREADS", str(threads or os.cpu_count()))
        if shutil.which("g++") is None:
            # vLLM's sampler compiles a small function on its first call, and the images have no compiler.
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
