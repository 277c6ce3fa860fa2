"""Processes of the learner benchmark: python -m benchmarks.learner_peers head | trl MODEL | calopd MODEL

Reads one JSON question per line and answers each with one {"cpu", "wall", "peak_mib"}: seconds of the work, and the
peak of the resident memory above that before the work.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

STEP = 1
"""The step that is learnt again and again: the first one also keeps trajectories for the report."""
Work = Callable[[Any], Callable[[], object]]
"""From a question to what is to be measured."""


def head() -> Work:
    import torch

    from calopd.core.cpu_products import product
    from calopd.core.lm_head import policy_gradient, policy_objective

    sides: dict[tuple[int, ...], Callable[[str], object]] = {}

    def make(vocabulary: int, width: int, tokens: int) -> Callable[[str], object]:
        draw = torch.Generator().manual_seed(0)
        hidden = torch.randn(tokens, width, generator=draw, requires_grad=True)
        weight = torch.randn(vocabulary, width, generator=draw).mul_(0.05).requires_grad_()
        targets = torch.randint(vocabulary, (tokens,), generator=draw)
        teacher = -torch.rand(tokens, generator=draw)
        optimizer = torch.optim.AdamW([weight], lr=1e-6, fused=True)

        def run(way: str) -> None:
            if way.endswith("product"):
                with torch.no_grad():
                    product(hidden, weight.T) if way == "our product" else hidden @ weight.T
                return
            if way == "full":
                logprobs = (hidden @ weight.T).log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
                loss = (-(teacher - logprobs.detach()) * logprobs).sum()
                del logprobs
            else:
                loss = policy_objective(hidden, weight, targets, lambda part, own: own - teacher[part])[0]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            hidden.grad = None

        run("ours")  # the optimizer state
        return run

    def work(question: dict[str, Any]) -> Callable[[], object]:
        shape = question["vocabulary"], question["hidden"], question["tokens"]
        if shape not in sides:
            sides.clear()
            sides[shape] = make(*shape)
        if question.get("fresh"):
            policy_gradient._kept.buffer = None
        return lambda: sides[shape](question["way"])

    return work


def trl(model: str) -> Work:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DistillationConfig, DistillationTrainer

    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    settings = DistillationConfig(
        tempfile.mkdtemp(), use_cpu=True, bf16=False, per_device_train_batch_size=4, report_to=[], learning_rate=1e-6
    )
    student, teacher = (AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32) for _ in range(2))
    data = Dataset.from_list([{"prompt": "none"}] * 8)
    trainer = DistillationTrainer(
        model=student, teacher_model=teacher, args=settings, train_dataset=data, processing_class=tokenizer
    )
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    pad = tokenizer.pad_token_id or 0
    inputs: dict[str, Any] = {}
    # Generation is left out: the batch is given.
    trainer._prepare_inputs = lambda batch: inputs

    def step() -> None:
        trainer.model.train()
        trainer.training_step(trainer.model, {}, None)
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()

    def work(batch: list[dict[str, Any]]) -> Callable[[], object]:
        inputs.clear()
        for name, rows in (
            ("prompt", [one["prompts"]["c0"] for one in batch]),
            ("completion", [one["response"] for one in batch]),
        ):
            longest = max(map(len, rows))
            gaps = [[pad] * (longest - len(row)) for row in rows]
            left = name == "prompt"
            ids = [gap + row if left else row + gap for row, gap in zip(rows, gaps, strict=True)]
            mask = [
                [0] * len(gap) + [1] * len(row) if left else [1] * len(row) + [0] * len(gap)
                for row, gap in zip(rows, gaps, strict=True)
            ]
            inputs[f"{name}_ids"], inputs[f"{name}_mask"] = torch.tensor(ids), torch.tensor(mask)
        inputs["num_items_in_batch"] = inputs["completion_mask"].sum().float()
        return step

    return work


def calopd(model: str) -> Work:
    from calopd.models.devices import set_process_environment

    set_process_environment()  # as every service does
    from calopd.config import load_config
    from calopd.core.step_result import StepSums
    from calopd.core.types import Sample, ScoreOptions, Scores, Trajectory
    from calopd.data.problems import Problem
    from services.learner.ranks import Ranks
    from services.learner.tickets import step_tickets
    from services.learner.trainer import Trainer
    from services.teacher_scorer.engines.scoring_engine import SequenceToScore
    from services.teacher_scorer.engines.torch_scorer import TorchScorer

    file = Path(tempfile.mkdtemp()) / "run.toml"
    file.write_text(
        f'[data]\ntrain = "none"\n[student]\npath = "{model}"\n[teacher]\npath = "{model}"\n'
        '[rollout]\nengine = "torch"\n[learner]\ntrajectories = 4\ndevice = "cpu"\n'
    )
    configs = {1: load_config(file, ["method.name=opd"]), 3: load_config(file, ["method.name=cal_opd"])}
    ranks = Ranks(configs[1].learner)
    trainer = Trainer(configs[1], ranks)
    teacher = TorchScorer.configured(configs[1].teacher)

    def trajectory(ticket: Any, one: dict[str, Any], logprobs: np.ndarray) -> Trajectory:
        response = np.array(one["response"], np.int32)
        sample = Sample(response, logprobs[0], truncated=False, policy_version=STEP, seconds=0.0)
        scores = Scores(ticket.contexts, logprobs, teacher_revision="", seconds=0.0)
        prompt = np.array(one["prompts"]["c0"], np.int32)
        return Trajectory(ticket, prompt, sample, scores, False, False, sampler="", worker="")

    def step(config: Any, batch: list[dict[str, Any]]) -> None:
        problems = [Problem(str(i), "", "") for i in range(len(batch))]
        tickets = [replace(t, score_options=ScoreOptions()) for t in step_tickets(config, problems, "", 0)]
        names = tickets[0].contexts
        arrays = {name: [np.array(one["prompts"][name], np.int32) for one in batch] for name in names}
        sequences = [
            SequenceToScore(arrays[name][i], np.array(one["response"], np.int32))
            for i, one in enumerate(batch)
            for name in names
        ]
        scores = iter(teacher.score(sequences).scores)
        logprobs = [np.stack([next(scores).logprobs for _ in names]) for _ in batch]
        trainer._config = config
        trainer.begin(STEP)
        trainer.learn([trajectory(*row) for row in zip(tickets, batch, logprobs, strict=True)], None)
        sums = StepSums()
        sums.merge(trainer.result.sums)
        trainer.optimizer_step(sums)

    return lambda question: lambda: step(configs[question["contexts"]], question["batch"])


def measured(work: Callable[[], object]) -> dict[str, float]:
    Path("/proc/self/clear_refs").write_text("5")
    before, wall, cpu = _memory("VmRSS"), time.perf_counter(), time.process_time()
    work()
    spent = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    return {name: round(value, 4) for name, value in spent.items()} | {"peak_mib": _memory("VmHWM") - before}


def _memory(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def main(kind: str, *arguments: str) -> None:
    # Output of libraries goes to stderr; stdout carries only the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    kinds: dict[str, Callable[..., Work]] = {"head": head, "trl": trl, "calopd": calopd}
    work = kinds[kind](*arguments)
    answers.write("ready\n")
    for line in sys.stdin:
        answers.write(json.dumps(measured(work(json.loads(line)))) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
