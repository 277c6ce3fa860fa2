"""docs/sizing.md: memory of every role of the shipped recipes, and the GPUs that a student needs."""

import json
from math import ceil

from benchmarks.memory import RESULTS, first_of_each_role, recipes
from calopd.config import Config
from calopd.config.sections import LearnerSection
from calopd.doctor.disk_checks import REST_BYTES
from calopd.planning.fits import SPARE, gpu_memory
from calopd.planning.gpus import CONTEXT_GIB, FRAGMENTATION, GIB, GPUS, NCCL_GIB, usable_gib
from calopd.planning.learner_memory import LearnerWork, learner_memory
from calopd.planning.model_shapes import load_shape
from calopd.planning.role_needs import rollout_sequences
from calopd.planning.storage import OTHER_FILES, checkpoint_bytes, disk_bytes, learner_host_bytes, policies_bytes
from docs.generators.markdown import code, table

STUDENTS = ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B")
TOKENS = 32_768
LORA_RANK = 64

INTRODUCTION = f"""\
# Sizing

<!-- Generated from the code by `make docs`. Do not edit: change calopd/planning or the recipes. -->

Computed, not measured: nobody has run these recipes on GPUs yet. `calopd doctor CONFIG` computes the same for a
configuration of your own. Usable memory of a GPU is what CUDA reports, less {FRAGMENTATION:.0%} for fragmentation,
{CONTEXT_GIB} GiB per process for its CUDA context, and {NCCL_GIB} GiB for NCCL if the process exchanges tensors with
other GPUs. All recipes leave {SPARE:.0%} of it free.
"""

COUNTS = """\
## Recipes

Peak memory of one process of each role, in GiB:

- *Formula* is the arithmetic in `calopd/planning`.
- *Counted* is the peak of the role's own code, run with fake tensors: shapes without values, every allocation counted
  (`make bench-memory`). The learner runs over FSDP2, with the largest micro-batch that the settings allow. vLLM itself
  needs a GPU: of the rollout, a model of transformers with the same sizes and vLLM's sampler are counted. Its CUDA
  graphs are an assumption in both columns.
- A rollout takes its whole share of the GPU (`rollout.gpu_memory_utilization`): the rest becomes KV cache.
- Roles that share a GPU can use what the others leave.
"""

HOST = f"""\
## Outside of the GPUs

- `/policies` holds all policies that exist at once, in the rollout's data type. Containers keep them in memory
  (`POLICIES_SIZE`, with 2 % added and rounded up to whole GiB).
- The disk holds `learner.keep_checkpoints` + 1 checkpoints, the exported model and {OTHER_FILES // 10**9} GB for
  the rest, of which `calopd doctor` requires {REST_BYTES // 10**9} GB.
- The host's memory is that of all learner ranks together: the copy of a checkpoint while it is written, or the student
  while every rank loads it.
"""

RANKS = f"""\
## Learner ranks

The smallest number of ranks that can train a student with micro-batches of {TOKENS:,} tokens and {SPARE:.0%} to spare:
all parameters, or LoRA of rank {LORA_RANK}. A dash: not even 8 ranks.
"""


def page() -> str:
    configs = recipes()
    return "\n".join(
        (INTRODUCTION, COUNTS, _counts(configs), HOST, _host(configs), RANKS, _ranks(), "## GPUs\n", _gpus())
    )


def _counts(configs: dict[str, Config]) -> str:
    counted = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = []
    for name, config in configs.items():
        memory = gpu_memory(config)
        assert memory is not None
        for fit in first_of_each_role(config):
            count = counted[name][fit.role]["counted_gib"]
            assert fit.needed_gib is not None
            difference = "" if count is None else f"{fit.needed_gib / count - 1:+.1%}"
            note = f"{rollout_sequences(config, memory)} longest responses at once" if fit.role == "rollout" else ""
            rows.append(
                (
                    code(name),
                    fit.role,
                    f"{_processes(config, fit.role)} x {config.resources.gpu}",
                    "" if count is None else f"{count:.1f}",
                    f"{fit.needed_gib:.1f}",
                    difference,
                    f"{fit.usable_gib:.1f}",
                    f"{fit.spare:.0%}",
                    note,
                )
            )
    return table(
        ("Recipe", "Role", "GPUs", "Counted", "Formula", "Difference", "Usable", "To spare", "KV cache holds"), rows
    )


def _processes(config: Config, role: str) -> int:
    placement = config.placement
    gpus = {"teacher": placement.teachers, "rollout": placement.rollouts, "learner": placement.learner}
    return len(gpus[role])


def _host(configs: dict[str, Config]) -> str:
    rows = []
    for name, config in configs.items():
        sizes = (policies_bytes(config), checkpoint_bytes(config), disk_bytes(config), learner_host_bytes(config))
        rows.append((code(name), *(f"{ceil((size or 0) / GIB)} GiB" for size in sizes)))
    return table(("Recipe", "`/policies`", "Checkpoint", "Disk of the run", "Host memory of the learner"), rows)


def _ranks() -> str:
    rows = []
    for path in STUDENTS:
        for lora in (0, LORA_RANK):
            found = [_fewest(path, lora, gpu.memory_gib) for gpu in GPUS.values()]
            rows.append((path, f"LoRA {lora}" if lora else "all", *(str(ranks) if ranks else "-" for ranks in found)))
    return table(("Student", "Trained", *GPUS), rows)


def _fewest(path: str, lora_rank: int, memory_gib: float) -> int | None:
    """The smallest number of ranks that fits with room to spare."""
    shape = load_shape(path)
    assert shape is not None
    settings = LearnerSection(lora_rank=lora_rank)
    for ranks in (1, 2, 4, 8):
        needed = learner_memory(shape, settings, LearnerWork(ranks=ranks, tokens=TOKENS)).gib
        if needed <= (1 - SPARE) * usable_gib(memory_gib, communicates=ranks > 1):
            return ranks
    return None


def _gpus() -> str:
    rows = [(code(gpu.name), f"{gpu.memory_gib} GiB", f"{usable_gib(gpu.memory_gib):.1f} GiB") for gpu in GPUS.values()]
    return table(("`resources.gpu`", "Memory", "Usable by one process"), rows)
