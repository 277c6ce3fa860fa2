"""Checks of this machine: libraries, ports, memory and temporary folders."""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil

from calopd.config import Config
from calopd.config.ports import chosen_ports, local_ports, reserved_ports
from calopd.config.visible_gpus import needed_gpus
from calopd.doctor.case import Case
from calopd.doctor.outcome import Outcome, failed, not_checked, passed
from calopd.tracking.registry import check_libraries

PROCESS_GIB = 0.8
"""Memory of a service on a CPU besides its model: interpreter, torch, buffers."""


def trackers(case: Case) -> Outcome:
    names = case.config.tracking.trackers
    check_libraries(names)
    return passed(f"installed: {', '.join(names)}" if names else "metrics.jsonl and Prometheus only")


def ports(case: Case) -> Outcome:
    """Ports that the configuration names are free; for the others a run finds free ones."""
    with reserved_ports(case.config, chosen_ports(case.config)) as config:
        found = local_ports(config)
    return passed(f"{len(found)} ports are free: {', '.join(map(str, found.values()))}")


def memory(case: Case) -> Outcome:
    """A local run must not need more main memory than is available, by an estimate."""
    needed, available = needed_memory_gib(case.config), psutil.virtual_memory().available / 2**30
    if available < needed:
        return failed(
            f"not enough memory: about {needed:.1f} GiB needed, {available:.1f} GiB available",
            "close other programs, or lower rollout.cpu_kv_cache_gib, teacher.replicas, rollout.replicas or "
            "learner.ranks",
        )
    return passed(f"about {needed:.1f} GiB of main memory needed, {available:.1f} GiB available")


def needed_memory_gib(config: Config) -> float:
    """Main memory of all processes of a local run. On GPUs, weights are loaded straight to the device."""
    teachers = 0 if config.teacher.addresses else config.teacher.replicas
    if needed_gpus(config):
        from calopd.planning.storage import PROCESS_GIB as GPU_PROCESS_GIB  # imports torch
        from calopd.planning.storage import learner_host_bytes

        learner = (learner_host_bytes(config) or 0) / 2**30
        return learner + (teachers + config.rollout.replicas) * GPU_PROCESS_GIB

    def weights_gib(path: str) -> float:
        return sum(f.stat().st_size for f in Path(path).glob("*.safetensors")) / 2**30

    student, teacher = weights_gib(config.student.path), weights_gib(config.teacher.path)
    processes = teachers + config.rollout.replicas + config.learner.ranks
    cache = config.rollout.cpu_kv_cache_gib if config.rollout.engine == "vllm" else 0
    return processes * PROCESS_GIB + teachers * teacher + config.rollout.replicas * (student + cache) + 6 * student


def temporary_folders(case: Case) -> Outcome:
    """Triton, Inductor and FlashInfer load what they compile from temporary folders, which must allow execution."""
    folders = compile_folders(os.environ)
    if not any(map(shutil.which, ("gcc", "g++", "cc", "nvidia-smi"))):
        return not_checked("no compiler and no GPU on this machine: nothing is compiled")
    refused = {key: folder for key, folder in folders.items() if not can_execute(folder)}
    if refused:
        key, folder = next(iter(refused.items()))
        return failed(
            f"{folder} ({key}) does not allow execution: compiled kernels cannot be loaded from it",
            f"mount it with `exec` (Docker: `tmpfs: {folder}:exec`), or set {key} to a folder on another file system",
        )
    return passed(
        f"{len(set(folders.values()))} folders allow execution: {', '.join(sorted(map(str, set(folders.values()))))}"
    )


def compile_folders(environment: Mapping[str, str]) -> dict[str, Path]:
    """Folders that compiled code is written to, by the variable that chooses each; the nearest that exists."""
    home, temporary = Path.home(), Path(tempfile.gettempdir())
    defaults = {
        "TMPDIR": temporary,
        "TRITON_CACHE_DIR": Path(environment.get("TRITON_HOME", home)) / ".triton" / "cache",
        "TORCHINDUCTOR_CACHE_DIR": temporary,
        "VLLM_CACHE_ROOT": Path(environment.get("XDG_CACHE_HOME", home / ".cache")) / "vllm",
        "FLASHINFER_WORKSPACE_BASE": home,
    }
    return {key: _existing(Path(environment.get(key) or folder)) for key, folder in defaults.items()}


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def can_execute(folder: Path) -> bool:
    """Write a tiny program there and run it; False if the folder is not writable or the mount forbids execution."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".calopd-doctor-", dir=folder)
    except OSError:
        return False
    program = Path(name)
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write("#!/bin/sh\nexit 0\n")
        program.chmod(stat.S_IRWXU)
        return subprocess.run([program], capture_output=True, check=False).returncode == 0
    except PermissionError:
        return False
    finally:
        program.unlink(missing_ok=True)
