"""Benchmark of policies as deltas: a real student, trained by the real learner step, published both ways.

Part of `python -m benchmarks.policies`. SmolLM2-135M is trained on English text, 20 of the 100 steps of the paper's
schedule. The teacher is the same model with more of the text before the response, so that gradients are real. After
every step the policy is published whole and as a delta in bfloat16, then verified and, as a delta, applied.

Published models are bfloat16: at first every weight is a bfloat16 value, and has to move by half the distance to the
next one before the policy changes. Later in a run it is anywhere in between. `start` says which of the two a run is.
"""

import statistics
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.model_builders import smollm2
from calopd.config import load_config
from calopd.core.types import Sample, Sampling, Scores, Ticket, Trajectory
from calopd.rundir.policies import WEIGHTS, load_policy, prune_policies
from calopd.rundir.policy_publisher import FilePublisher
from calopd.rundir.policy_reader import FileReader
from services.learner.ranks import Ranks
from services.learner.trainer import Trainer

Start = Literal["bfloat16", "between"]
ROOT = Path(__file__).parent.parent
TEXT = ("README.md", "CONTRIBUTING.md", "docs/tutorial.md", "docs/tsd.md", "docs/runbook.md", "docs/methods.md")
STEPS, SEQUENCES, RESPONSE, PROMPT, CONTEXT = 20, 4, 64, 16, 64
"""Steps of a run; responses of a step and their tokens; tokens before a response for the student and the teacher."""
TOML = """
[run]
name = "deltas"
steps = 100
[data]
train = "unused.jsonl"
[student]
path = "{model}"
[teacher]
path = "{model}"
[method]
name = "opd"
overlap_top_k = 0
[rollout]
dtype = "bfloat16"
[learner]
device = "cpu"
trajectories = {trajectories}
learning_rate = {rate}
recompute_activations = false
"""


def text_ids(model: Path) -> np.ndarray:
    tokenizer = AutoTokenizer.from_pretrained(model)
    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in TEXT)
    return np.asarray(tokenizer(text)["input_ids"], np.int32)


def trajectories(model: Path) -> Iterator[list[Trajectory]]:
    """The trajectories of each step: pieces of text, scored by the initial model with more context."""
    ids, teacher = text_ids(model), AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    stride = len(ids) // (STEPS * SEQUENCES)
    assert stride >= CONTEXT + RESPONSE, "the text is too short"
    for step in range(STEPS):
        found = []
        for index in range(SEQUENCES):
            start = (step * SEQUENCES + index) * stride
            context, response = np.split(ids[start : start + CONTEXT + RESPONSE], [CONTEXT])
            with torch.no_grad():
                logits = teacher(torch.from_numpy(np.concatenate((context, response))).long()[None]).logits[0]
            scores = logits[CONTEXT - 1 : -1].log_softmax(-1).gather(1, torch.from_numpy(response).long()[:, None])
            ticket = Ticket("r", f"step-{step:06d}", index, "p", 0, 0, step, Sampling(), ("c0",))
            found.append(
                Trajectory(
                    ticket=ticket,
                    prompt_ids=context[-PROMPT:],
                    sample=Sample(response, np.zeros(RESPONSE, np.float32), False, step, 0.0),
                    scores=Scores(("c0",), scores.T.numpy(), "r", 0.0),
                    correct=False,
                    answered_after_think=False,
                    sampler="text",
                    worker="w",
                )
            )
        yield found


class Way:
    """One way to publish: its own folder, publisher and reader, and the seconds of each part."""

    def __init__(self, folder: Path, snapshot_every: int) -> None:
        self._folder = folder
        self._publisher, self._reader = FilePublisher(folder, "bench", snapshot_every), FileReader(folder)
        self.bytes: list[int] = []
        self.seconds: dict[str, list[float]] = {"publish": [], "verify and apply": [], "load": []}
        self.file = Path()

    def pass_on(self, version: int, trainer: Trainer, rollout: Any) -> None:
        """Publish a policy, fetch it as a replica does, and load it."""
        clock = [time.perf_counter()]
        published = self._publisher.publish(version, trainer.policy_weights())
        clock.append(time.perf_counter())
        directory = self._reader.fetch(version, published.sha256).directory
        clock.append(time.perf_counter())
        rollout.load_state_dict(load_policy(directory), strict=False)
        clock.append(time.perf_counter())
        self.file = directory / WEIGHTS
        prune_policies(self._folder, version, keep=1)
        if version:  # the first one is a snapshot in both ways
            self.bytes.append(published.bytes)
            for name, start, end in zip(self.seconds, clock[:-1], clock[1:], strict=True):
                self.seconds[name].append(end - start)

    def summary(self) -> dict[str, Any]:
        return {
            "bytes": round(statistics.median(self.bytes)),
            "seconds": {name: round(statistics.median(values), 3) for name, values in self.seconds.items()},
        }


def generic(old: np.ndarray, new: np.ndarray) -> dict[str, Any]:
    """Size and time of zlib alone, on the XOR of two policies, in one thread."""
    start = time.perf_counter()
    size = len(zlib.compress((old ^ new).tobytes(), 1))
    return {"bytes": size, "seconds": round(time.perf_counter() - start, 3)}


def measure_run(folder: Path, rate: float, start: Start, steps: list[list[Trajectory]]) -> dict[str, Any]:
    model = smollm2()
    (folder / "run.toml").write_text(TOML.format(model=model, trajectories=SEQUENCES, rate=rate))
    config = load_config(folder / "run.toml", [f'run.dir="{folder}"'], {})
    ranks = Ranks(config.learner)
    trainer = Trainer(config, ranks)
    if start == "bfloat16":
        with torch.no_grad():
            for parameter in trainer.student.parameters():
                parameter.copy_(parameter.to(torch.bfloat16))
    rollout = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    whole, delta = Way(folder / "whole", 1), Way(folder / "delta", 10**6)
    shares: list[float] = []
    before = np.empty(0, np.uint16)
    other: dict[str, Any] = {}
    for version in range(len(steps) + 1):
        if version:
            trainer.begin(version - 1)
            trainer.learn(steps[version - 1], None)
            trainer.optimizer_step(trainer.result.sums)
        for way in (whole, delta):
            way.pass_on(version, trainer, rollout)
        assert whole.file.read_bytes() == delta.file.read_bytes()
        now = np.fromfile(whole.file, np.uint16)
        if version:
            shares.append(float(np.count_nonzero(before != now) / len(now)))
        if version == len(steps):
            other = generic(before, now)
        before = now
    ranks.close()
    ours, theirs = delta.summary(), whole.summary()
    return {
        "learning_rate": rate,
        "start": start,
        "changed_share": {
            "first": round(shares[0], 6), "median": round(statistics.median(shares), 6), "last": round(shares[-1], 6),
        },
        "whole": theirs,
        "delta": ours,
        "bytes_ratio": round(theirs["bytes"] / ours["bytes"], 1),
        "largest_delta": max(delta.bytes),
        "zlib_of_xor": other,
    }  # fmt: skip


def measure_deltas(folder: Path) -> list[dict[str, Any]]:
    """Two learning rates, from bfloat16 weights and from weights between bfloat16 values."""
    steps, runs = list(trajectories(smollm2())), []
    cases: list[tuple[float, Start]] = [(1e-6, "bfloat16"), (1e-6, "between"), (1e-5, "bfloat16"), (1e-5, "between")]
    for rate, start in cases:
        place = folder / f"{rate}-{start}"
        place.mkdir()
        runs.append(measure_run(place, rate, start, steps))
        print(runs[-1], flush=True)
    return runs
