"""The GPUs that processes of this machine can use, found without CUDA."""

import os
from collections.abc import Iterable
from pathlib import Path

from calopd.config.placement import ROLES
from calopd.config.schema import Config
from calopd.core.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
"""One entry per GPU that NVIDIA's driver serves."""


def visible_gpus() -> tuple[str, ...] | None:
    """Names of the visible GPUs, as CUDA_VISIBLE_DEVICES writes them; None if there is no sign of a driver."""
    if (named := os.environ.get(VISIBLE)) is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip())
    return tuple(str(number) for number in range(len(list(DRIVER_GPUS.iterdir())))) if DRIVER_GPUS.is_dir() else None


def gpu_environment(gpus: Iterable[int]) -> dict[str, str]:
    """Variables that show a process only these GPUs; none for no GPUs: the process sees what its parent sees."""
    names, visible = list(gpus), visible_gpus()
    if not names:
        return {}
    if visible:
        check_gpus(names, "resources")
    shown = {VISIBLE: ",".join(visible[gpu] if visible else str(gpu) for gpu in names)}
    # Without it CUDA puts the fastest GPU first, and ids are not those of nvidia-smi.
    return shown if {VISIBLE, ORDER} & os.environ.keys() else {**shown, ORDER: "PCI_BUS_ID"}


def check_gpus(gpus: Iterable[int], source: str) -> None:
    """Refuse ids that this host does not have, if it shows its GPUs."""
    wanted, visible = sorted(gpus), visible_gpus()
    if wanted and visible is not None and wanted[-1] >= len(visible):
        limited = f" ({VISIBLE}={os.environ[VISIBLE]})" if VISIBLE in os.environ else ""
        raise ConfigError(
            f"{source} uses the GPUs {', '.join(map(str, wanted))}, but {len(visible)} are visible here{limited}: "
            "give the roles fewer GPUs, or use a host with more"
        )


def needed_gpus(config: Config) -> tuple[int, ...]:
    """The GPUs that a run on this host needs: those of [resources], or none if every role computes on the CPU."""
    sections = (config.teacher, config.rollout, config.learner)
    return () if all(section.device == "cpu" for section in sections) else config.placement.gpus


def check_placement(config: Config, roles: Iterable[str] = ROLES) -> None:
    """Refuse a placement that this host cannot give to the roles that it is to start."""
    gpus = needed_gpus(config)
    if not gpus:
        return
    for role in roles:
        if getattr(config.resources, role) is None and not (role == "teacher" and config.teacher.addresses):
            raise ConfigError(
                f"resources places other roles, but not the {role}, which would share a GPU with one of them: set "
                f"resources.{role}"
            )
    check_gpus(gpus, "resources")
