"""Torch's processes: the group that computes, and the one over which rank 0 tells the others what to do."""

from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from calopd.models.devices import choose_device

# Ranks wait for rank 0 as long as the longest response takes; a rank that died is noticed by torchrun, not by this.
PATIENCE = timedelta(hours=12)

T = TypeVar("T")


class Ranks:
    def __init__(self, device: str) -> None:
        self.device = choose_device(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo", timeout=PATIENCE)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.mesh: DeviceMesh = init_device_mesh(self.device.type, (self.size,))
        self._control = dist.new_group(backend="gloo", timeout=PATIENCE)

    def broadcast(self, value: T | None) -> T:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value  # type: ignore[return-value]
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]  # type: ignore[return-value]

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, on every rank."""
        if self.size == 1:
            return [value]
        boxes: list[T] = [value] * self.size
        dist.all_gather_object(boxes, value, group=self._control)
        return boxes

    def close(self) -> None:
        dist.destroy_process_group()
