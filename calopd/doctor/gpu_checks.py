"""Checks of the GPUs and the driver. nvidia-smi is asked, not CUDA, which a process cannot share with its forks."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calopd.config.visible_gpus import check_placement, needed_gpus
from calopd.doctor.case import Case
from calopd.doctor.outcome import Outcome, failed, not_checked, passed

if TYPE_CHECKING:
    from calopd.planning import RoleFit

QUERY = ("index", "name", "memory.total", "memory.reserved", "memory.used", "driver_version", "compute_cap")
DRIVER_OF_CUDA = {12: 525, 13: 580}
"""The first driver series that runs programs of a CUDA major version."""
NO_GPU_WANTED = "no GPU wanted: [resources] places no role on a GPU, or all compute on the CPU"
BUSY_GIB = 1.0
"""Memory in use from which a GPU counts as occupied by another program."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as nvidia-smi describes it."""

    index: int
    name: str
    memory_gib: float
    """Without what the driver reserves, as CUDA counts it."""
    used_gib: float
    driver: str
    capability: str


def parse_gpus(text: str) -> list[Gpu]:
    """The GPUs in the CSV output of nvidia-smi."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        index, name, total, reserved, used, driver, capability = (part.strip() for part in line.split(","))
        memory = _gib(total) - _gib(reserved)
        found.append(Gpu(int(index), name, memory, _gib(used), driver, capability))
    return found


def _gib(mebibytes: str) -> float:
    """0 for `[N/A]`, which some GPUs and drivers answer."""
    return float(mebibytes) / 1024 if mebibytes.replace(".", "").isdigit() else 0.0


def query_gpus() -> list[Gpu]:
    """The GPUs of this host; none if there is no driver."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_gpus(done.stdout)


def gpus(case: Case) -> Outcome:
    """The GPUs that [resources] names exist and are free."""
    wanted = needed_gpus(case.config)
    if not wanted:
        return not_checked(NO_GPU_WANTED)
    check_placement(case.config)
    return judge_gpus(wanted, query_gpus())


def judge_gpus(wanted: tuple[int, ...], found: list[Gpu]) -> Outcome:
    missing = sorted(set(wanted) - {gpu.index for gpu in found})
    if missing:
        return failed(
            f"[resources] uses the GPUs {', '.join(map(str, wanted))}, but nvidia-smi shows {len(found)}",
            "install the driver, give the container its GPUs (`--gpus all`), or place the roles on fewer GPUs",
        )
    chosen = [gpu for gpu in found if gpu.index in wanted]
    if busy := [gpu for gpu in chosen if gpu.used_gib > BUSY_GIB]:
        gpu = busy[0]
        return failed(
            f"GPU {gpu.index} ({gpu.name}): another program uses {gpu.used_gib:.1f} of {gpu.memory_gib:.1f} GiB",
            "end that program (`nvidia-smi` lists it), or place the roles on other GPUs",
        )
    names = sorted({f"{gpu.name}, {gpu.memory_gib:.1f} GiB" for gpu in chosen})
    return passed(f"{len(chosen)} GPUs, free: {'; '.join(names)}")


def driver(case: Case) -> Outcome:
    """The driver runs the CUDA version that torch was built for."""
    if not needed_gpus(case.config):
        return not_checked(NO_GPU_WANTED)
    import torch

    found = query_gpus()
    return judge_driver(torch.__version__, torch.version.cuda, found[0].driver if found else "")


def judge_driver(torch_version: str, cuda: str | None, installed: str) -> Outcome:
    if cuda is None:
        return failed(
            f"torch {torch_version} is a build without CUDA", "install the GPU packages with `make setup-gpu`"
        )
    if not installed:
        return failed("nvidia-smi shows no driver", "install NVIDIA's driver, or give the container its GPUs")
    needed = DRIVER_OF_CUDA.get(int(cuda.split(".")[0]), 0)
    if int(installed.split(".")[0]) < needed:
        return failed(
            f"driver {installed} is too old for torch {torch_version}, which is built for CUDA {cuda}",
            f"install a driver of the {needed} series or newer",
        )
    return passed(f"driver {installed}, torch {torch_version} for CUDA {cuda}")


def role_memory(case: Case) -> Outcome:
    """Every process that [resources] places fits its GPUs, by arithmetic."""
    if not (wanted := needed_gpus(case.config)):
        return not_checked(NO_GPU_WANTED)
    found = [gpu.memory_gib for gpu in query_gpus() if gpu.index in wanted]
    from calopd.planning import role_fits  # imports torch

    return judge_fits(role_fits(case.config, min(found, default=None)))


def judge_fits(fits: "Sequence[RoleFit]") -> Outcome:
    for fit in fits:
        if fit.fits is False:
            return failed(f"{fit.name} needs {fit.needed_gib:.1f} GiB of {fit.usable_gib:.1f} usable", fit.advice)
    if unknown := [fit for fit in fits if fit.fits is None]:
        return not_checked(f"{unknown[0].name}: {unknown[0].advice}")
    fullest = {fit.role: fit for fit in sorted(fits, key=lambda fit: fit.needed_gib or 0)}
    return passed(", ".join(f"{fit.name} {fit.needed_gib:.1f} of {fit.usable_gib:.1f} GiB" for fit in fullest.values()))
