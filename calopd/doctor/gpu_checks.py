"""Checks of the GPUs and the driver. nvidia-smi is asked, not CUDA, which a process cannot share with its forks."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from calopd.config import Config
from calopd.config.placement import ROLES
from calopd.config.visible_gpus import VISIBLE, check_placement, needed_gpus, visible_gpus
from calopd.doctor.case import Case
from calopd.doctor.outcome import Outcome, Verdict, failed, not_checked, passed

if TYPE_CHECKING:
    from calopd.planning import RoleFit

QUERY = ("index", "uuid", "name", "memory.total", "memory.reserved", "memory.used", "driver_version", "compute_cap")
DRIVER_OF_CUDA = {12: 525, 13: 580}
"""The first driver series that runs programs of a CUDA major version."""
NO_GPU_WANTED = "no GPU wanted: [resources] places no role on a GPU, or all compute on the CPU"
BUSY_GIB = 1.0
"""Memory in use from which a GPU counts as occupied by another program."""
LEAST_CAPABILITY = 8.0
"""Compute capability from which a GPU has bfloat16 and the kernels of packed attention."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as nvidia-smi describes it."""

    index: int
    uuid: str
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
        index, uuid, name, total, reserved, used, driver, capability = (part.strip() for part in line.split(","))
        memory = _gib(total) - _gib(reserved)
        found.append(Gpu(int(index), uuid, name, memory, _gib(used), driver, capability))
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


def usable_gpus() -> list[Gpu]:
    """The GPUs that processes started here see, in their order and with their ids: those of CUDA_VISIBLE_DEVICES."""
    found = query_gpus()
    if VISIBLE not in os.environ:
        return found
    seen = []
    for number, name in enumerate(visible_gpus() or ()):
        # CUDA takes the beginning of a UUID too, and ignores all names after the first that it does not know.
        gpu = next((gpu for gpu in found if name == str(gpu.index) or _is_uuid(name, gpu)), None)
        if gpu is None:
            break
        seen.append(replace(gpu, index=number))
    return seen


def _is_uuid(name: str, gpu: Gpu) -> bool:
    return name.startswith("GPU-") and gpu.uuid.startswith(name)


def placed_config(case: Case) -> Config:
    """The configuration, with the GPUs that roles take which [resources] does not place: the first ones, for each."""
    config = case.config
    if config.placement.gpus or config.emulated or not usable_gpus():
        return config
    import torch

    if torch.version.cuda is None:
        return config
    teacher, rollout, learner = config.teacher, config.rollout, config.learner
    taken = {
        "teacher": (teacher.device, 0 if teacher.addresses else teacher.tensor_parallel_size),
        "rollout": (rollout.device, rollout.tensor_parallel_size),
        "learner": (learner.device, learner.ranks),
    }
    first = {role: _first_gpus(*taken[role]) for role in case.placed}
    return config.model_copy(update={"resources": config.resources.model_copy(update=first)})


def _first_gpus(device: str, count: int) -> tuple[int, ...] | None:
    start = int(device.partition(":")[2] or 0)
    return tuple(range(start, start + count)) or None if device != "cpu" else None


def gpus(case: Case) -> Outcome:
    """The GPUs that [resources] names exist and are free."""
    wanted = needed_gpus(placed_config(case))
    if not wanted:
        return not_checked(NO_GPU_WANTED)
    check_placement(case.config)
    if any(name.startswith("MIG-") for name in visible_gpus() or ()):
        return not_checked(f"{VISIBLE} names parts of GPUs (MIG), which nvidia-smi does not list as GPUs")
    return judge_gpus(wanted, usable_gpus())


def judge_gpus(wanted: tuple[int, ...], found: list[Gpu]) -> Outcome:
    missing = sorted(set(wanted) - {gpu.index for gpu in found})
    if missing:
        return failed(
            f"[resources] uses the GPUs {', '.join(map(str, wanted))}, but {_source()} shows {len(found)}",
            "install the driver, give the container its GPUs (`--gpus all`), or place the roles on fewer GPUs",
        )
    chosen = [gpu for gpu in found if gpu.index in wanted]
    if busy := [gpu for gpu in chosen if gpu.used_gib > BUSY_GIB]:
        gpu = busy[0]
        return failed(
            f"GPU {gpu.index} ({gpu.name}): another program uses {gpu.used_gib:.1f} of {gpu.memory_gib:.1f} GiB",
            "end that program (`nvidia-smi` lists it), or place the roles on other GPUs",
        )
    if old := [gpu for gpu in chosen if _capability(gpu) < LEAST_CAPABILITY]:
        gpu = old[0]
        return failed(
            f"GPU {gpu.index} ({gpu.name}) has compute capability {gpu.capability}: bfloat16 and packed attention need "
            f"{LEAST_CAPABILITY}",
            "use GPUs of NVIDIA's Ampere generation (A100, RTX 3090) or later",
        )
    names = sorted({f"{gpu.name}, {gpu.memory_gib:.1f} GiB" for gpu in chosen})
    return passed(f"{len(chosen)} GPUs, free: {'; '.join(names)}")


def _capability(gpu: Gpu) -> float:
    """Sufficient for `[N/A]`, which some drivers answer."""
    return float(gpu.capability) if gpu.capability.replace(".", "", 1).isdigit() else LEAST_CAPABILITY


def _source() -> str:
    return f"{VISIBLE}={os.environ[VISIBLE]}" if VISIBLE in os.environ else "nvidia-smi"


def driver(case: Case) -> Outcome:
    """The driver runs the CUDA version that torch was built for."""
    if not needed_gpus(placed_config(case)):
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
    """Every process fits the GPUs that [resources] gives it, or that it takes without [resources], by arithmetic."""
    config = placed_only(placed_config(case), case.placed)
    if not (wanted := needed_gpus(config)):
        return not_checked(NO_GPU_WANTED)
    found = [gpu.memory_gib for gpu in usable_gpus() if gpu.index in wanted]
    from calopd.planning import role_fits  # imports torch

    outcome = judge_fits(role_fits(config, min(found, default=None)))
    if case.config.placement.gpus:
        return outcome
    shared = f"without [resources] all roles share GPU {', '.join(map(str, wanted))}: {outcome.message}"
    advice = "set [resources]; `calopd plan CONFIG` prints it" if outcome.verdict is Verdict.FAILED else outcome.advice
    return replace(outcome, message=shared, advice=advice)


def placed_only(config: Config, roles: Sequence[str]) -> Config:
    """The configuration without the GPUs of other roles; these keep theirs."""
    if set(ROLES) <= set(roles):
        return config  # counts stay counts, of which more can be advised
    kept = {role: (config.placement.of(role) or None) if role in roles else None for role in ROLES}
    return config.model_copy(update={"resources": config.resources.model_copy(update=kept)})


def judge_fits(fits: "Sequence[RoleFit]") -> Outcome:
    for fit in fits:
        if fit.fits is False:
            return failed(f"{fit.name} needs {fit.needed_gib:.1f} GiB of {fit.usable_gib:.1f} usable", fit.advice)
    if unknown := [fit for fit in fits if fit.fits is None]:
        return not_checked(f"{unknown[0].name}: {unknown[0].advice}")
    fullest = {fit.role: fit for fit in sorted(fits, key=lambda fit: fit.needed_gib or 0)}
    return passed(", ".join(f"{fit.name} {fit.needed_gib:.1f} of {fit.usable_gib:.1f} GiB" for fit in fullest.values()))
