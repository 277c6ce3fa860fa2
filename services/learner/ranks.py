"""The ranks of the learner: process groups for tensors, for Python objects and for checkpoints."""

import os
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from calopd.config.sections import LearnerSection
from calopd.config.sections.learner import ShardGroup
from calopd.core.environment import RANK_STORE
from calopd.core.errors import ConfigError
from calopd.models.devices import choose_device, keep_to_loopback

T = TypeVar("T")


class Ranks:
    """This process among the ranks: its number, its device, and the collectives of the training loop."""

    def __init__(self, settings: LearnerSection) -> None:
        self.device = choose_device(settings.device)
        timeout = timedelta(minutes=settings.collective_minutes)
        rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        shape = mesh_shape(world, int(os.environ.get("LOCAL_WORLD_SIZE", world)), settings.shard)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        # Gloo for tensors that are offloaded to the CPU. Only a flat mesh can bind a device: torch 2.13 creates the
        # groups of another one by splitting, which fails for two backends at once.
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo",
            timeout=timeout,
            store=meeting_point(world),
            rank=rank,
            world_size=world,
            device_id=self.device if self.device.type == "cuda" and len(shape) == 1 else None,
        )
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.mesh: DeviceMesh = init_device_mesh(
            self.device.type, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :]
        )
        for dimension in range(self.mesh.ndim):
            # Subgroups of a mesh do not inherit the time-out of the default group.
            _set_pg_timeout(timeout, self.mesh.get_group(dimension))
        self._control = dist.new_group(backend="gloo", timeout=timeout)
        self.checkpoints: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timeout)
        """For the thread that writes checkpoints: collectives of two threads in one group would get mixed up."""

    def broadcast(self, value: T | None) -> T:
        """Return rank 0's value on every rank; the values of other ranks are ignored."""
        if self.size == 1:
            return value  # type: ignore[return-value]
        objects = [value]
        dist.broadcast_object_list(objects, src=0, group=self._control)
        return objects[0]  # type: ignore[return-value]

    def gather(self, value: T, group: dist.ProcessGroup | None = None) -> list[T]:
        """Return the values of all ranks on every rank, in the order of ranks. Another thread needs its own group."""
        if self.size == 1:
            return [value]
        objects: list[T] = [value] * self.size
        dist.all_gather_object(objects, value, group=group or self._control)
        return objects

    def close(self) -> None:
        dist.destroy_process_group()


def meeting_point(world: int) -> dist.Store | None:
    """Where the ranks find one another: nowhere, in a file, or, on several nodes, at torchrun's address (None)."""
    file = os.environ.get(RANK_STORE.name)
    if world > 1 and not file:
        if os.environ.get("LOCAL_WORLD_SIZE") == str(world):
            raise ConfigError(
                "torchrun opens a port that others can run code through: start the ranks of one host with "
                f"`python -m services.learner.launch --nproc-per-node {world} -m …`"
            )
        return None
    keep_to_loopback()
    return dist.FileStore(file, world) if file else dist.HashStore()


def mesh_shape(ranks: int, ranks_per_node: int, group: ShardGroup) -> tuple[int, ...]:
    """Shape of the device mesh: one group of shards over all ranks, or one group per node and replicas across nodes."""
    if group == "all" or ranks == ranks_per_node:
        return (ranks,)
    if ranks % ranks_per_node:
        raise ConfigError(
            f'learner.shard = "node" needs the same number of ranks on every node, got {ranks} ranks and '
            f'{ranks_per_node} on this one: change the number of ranks, or set learner.shard = "all"'
        )
    return (ranks // ranks_per_node, ranks_per_node)
