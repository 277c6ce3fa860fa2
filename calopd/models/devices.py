"""Where to compute: the same code on CPU and GPU, chosen by one setting."""

import os
import shutil

import torch


def choose_device(setting: str) -> torch.device:
    """`auto` = this process's GPU where there is one, else the CPU."""
    if setting != "auto":
        return torch.device(setting)
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def set_threads(count: int) -> None:
    """CPU threads of this process; 0 leaves torch's choice."""
    if count:
        torch.set_num_threads(count)


def set_vllm_environment(kv_cache_gib: int, threads: int) -> None:
    """What vLLM reads at import: called before it."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(kv_cache_gib))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if not torch.cuda.is_available():
        # In one process: a second one would be bound to a single core and take five times as long to start.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("OMP_NUM_THREADS", str(threads or os.cpu_count()))
        if shutil.which("g++") is None:
            # A small function of vLLM's sampler is compiled on its first call; images have no compiler.
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
