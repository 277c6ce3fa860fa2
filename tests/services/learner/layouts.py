"""A program for the launcher: gradients, policies and checkpoints of the same student in different layouts.

python -m torch.distributed.run ... -m tests.services.learner.layouts MODEL FOLDER NODES

The ranks act as if they were spread over NODES nodes. Results go to FOLDER, the checkpoints into the run FOLDER/run.
"""

import functools
import os
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from calopd.config.sections import LearnerSection
from calopd.core.errors import CheckpointFailed
from calopd.models.adapters import merge_adapters
from calopd.rundir import checkpoints
from calopd.rundir.checkpoints import Record
from calopd.rundir.layout import RunDir
from services.learner import checkpoint
from services.learner.checkpoint import Checkpointer
from services.learner.full_weights import full_weights
from services.learner.optimizer import adamw
from services.learner.ranks import Ranks
from services.learner.student import Student, load_student, shard
from tests.services.learner.gradients import Case, form, trajectories

CASE = Case("seq-mean-token-mean", 150, 0)
WHOLE = Case("seq-mean-token-mean", 10**6, 0)
"""One micro-batch, so that layers are compiled for one shape."""
SETTINGS = LearnerSection(chunk=64, recompute_activations=False, learning_rate=1e-2, device="cpu")
LORA = LearnerSection(chunk=64, recompute_activations=False, lora_rank=2, lora_alpha=8)


def sharded(model: str, ranks: Ranks, settings: LearnerSection = SETTINGS, **options: bool) -> Student:
    student = load_student(model, settings)
    shard(student, ranks.mesh, torch.float32, **options)
    return student


def weights(student: Student, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    stream = full_weights(student, dtype)
    return {spec.name: tensor.clone() for spec, tensor in zip(stream.specs, stream.tensors, strict=True)}


def merged_by_hand(student: Student) -> dict[str, torch.Tensor]:
    """The adapters of the whole state dict, merged on one rank."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = get_model_state_dict(student, options=options)
    assert student.lora_scale is not None
    return merge_adapters({name.removeprefix("lm."): tensor for name, tensor in state.items()}, student.lora_scale)


def train_and_save(model: str, ranks: Ranks, run: RunDir) -> dict[str, Any]:
    """One step, a checkpoint of it, and another step while the checkpoint is being written."""
    everything = trajectories()
    student = sharded(model, ranks)
    optimizer = adamw(student, SETTINGS)
    gradient = form(student, ranks, everything, CASE)["gradient"]
    optimizer.step()
    record = Record(step=ranks.size, used={"step-000000": [1, 2, 3]})
    checkpointer = Checkpointer(run, ranks, keep=3)
    saved, policy = weights(student), weights(student, torch.bfloat16)
    checkpointer.begin(student, optimizer, record)
    record.used["step-000001"] = [4]
    optimizer.step()
    changed = weights(student)
    durable = checkpointer.finished(wait=True)
    assert durable is not None
    assert durable.step == ranks.size
    assert checkpointer.finished(wait=True) is None
    result = {"gradient": gradient, "saved": saved, "policy": policy, "changed": changed}
    if ranks.size == 1:
        result["refusal"] = refused_by_the_disk(checkpointer, student, optimizer)
    return result


def refused_by_the_disk(checkpointer: Checkpointer, student: Student, optimizer: torch.optim.Optimizer) -> str:
    """The message if files may not grow beyond 64 KiB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        checkpointer.begin(student, optimizer, Record(step=9))
        checkpointer.finished(wait=True)
    except CheckpointFailed as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return "nothing was refused"


def variants(model: str, ranks: Ranks) -> dict[str, Any]:
    """Gradients with the optimizer offloaded, and with compiled layers; a step of the fused optimizer."""
    everything, out = trajectories(), {}
    if not os.environ.get("CALOPD_TEST_INDUCTOR"):
        # Traced and cut into graphs as for inductor, but run by torch: code generation would take a minute.
        torch.compile = functools.partial(torch.compile, backend="aot_eager")  # type: ignore[assignment]
    for name, case in (("offload", CASE), ("compiled", WHOLE)):
        student = sharded(model, ranks, **{name: True})  # type: ignore[arg-type]
        out[name] = form(student, ranks, everything, case)["gradient"]
        torch.optim.AdamW(student.parameters(), lr=SETTINGS.learning_rate, weight_decay=0.01, fused=True).step()
        out[f"{name} fused"] = weights(student)
    return out


def load_other(model: str, ranks: Ranks, run: RunDir) -> dict[str, torch.Tensor]:
    """The checkpoint of a learner with another number of ranks."""
    student = sharded(model, ranks)
    newest = checkpoints.latest(run)
    assert newest is not None
    assert checkpoint.load(newest, student, adamw(student, SETTINGS)).step == 1
    return weights(student)


def merge(model: str, ranks: Ranks) -> dict[str, Any]:
    student = load_student(model, LORA)
    torch.manual_seed(0)
    for name, parameter in student.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_()
    shard(student, ranks.mesh, torch.float32)
    return {"streamed": weights(student), "by hand": merged_by_hand(student)}


def main(model: str, folder: str, nodes: str) -> None:
    os.environ["LOCAL_WORLD_SIZE"] = str(int(os.environ["WORLD_SIZE"]) // int(nodes))
    ranks, run = Ranks(SETTINGS), RunDir(Path(folder) / "run")
    result: dict[str, Any] = {"mesh": tuple(ranks.mesh.shape)}
    if ranks.size > 1:
        result["loaded"] = load_other(model, ranks, run)
        result["lora"] = merge(model, ranks)
    else:
        result |= variants(model, ranks)
    result |= train_and_save(model, ranks, run)
    if ranks.rank == 0:
        torch.save(result, Path(folder) / f"{ranks.size}.pt")
    ranks.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
