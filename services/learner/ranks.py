"""The ranks of the learner: a process group for tensors, and one for the Python objects that ranks exchange."""

from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from calopd.models.devices import choose_device

# Ranks wait for rank 0 as long as the longest response takes. torchrun, not this timeout, detects a dead rank.
TIMEOUT = timedelta(hours=12)

T = TypeVar("T")


class Ranks:
    """This process among the ranks: its number, its device, and the collectives of the training loop."""

    def __init__(self, device: str) -> None:
        self.device = choose_device(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo", timeout=TIMEOUT)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.mesh: DeviceMesh = init_device_mesh(self.device.type, (self.size,))
        self._control = dist.new_group(backend="gloo", timeout=TIMEOUT)

    def broadcast(self, value: T | None) -> T:
        """Return rank 0's value on every rank; the values of other ranks are ignored."""
        if self.size == 1:
            return value  # type: ignore[return-value]
        objects = [value]
        dist.broadcast_object_list(objects, src=0, group=self._control)
        return objects[0]  # type: ignore[return-value]

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks on every rank, in the order of ranks."""
        if self.size == 1:
            return [value]
        objects: list[T] = [value] * self.size
        dist.all_gather_object(objects, value, group=self._control)
        return objects

    def close(self) -> None:
        dist.destroy_process_group()
