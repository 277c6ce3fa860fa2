"""Create the demo's models and data from a seed: ``python -m examples.make_demo --out examples/demo``."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase, Qwen3ForCausalLM

from examples.demo_tokenizer import train_tokenizer
from examples.demo_training import Recipe, accuracy, train
from examples.word_problems import Problem, problems

TRAIN_SIZE, HELDOUT_SIZE, CHECK_SIZE = 8000, 1000, 250
VOCAB_LIMIT = 832
TEACHER = Recipe("teacher", layers=4, steps=900, decay_to=0.03, context_share=0.55)
STUDENT = Recipe("student", layers=2, steps=850, decay_to=0.1, context_share=0.0, stop_at=400)


def draw_sets(seed: int) -> tuple[list[Problem], list[Problem], set[str]]:
    """Held-out and training problems with different texts, and the texts that the models must not be trained on."""
    stream = problems(random.Random(f"data/{seed}"))
    heldout = [next(stream) for _ in range(HELDOUT_SIZE)]
    training = [next(stream) for _ in range(TRAIN_SIZE)]
    return heldout, training, {problem.text for problem in heldout}


def write_jsonl(path: Path, prefix: str, items: Sequence[Problem]) -> None:
    """Write one problem per line: id, problem, answer, solution."""
    with path.open("w", encoding="utf-8") as file:
        for index, item in enumerate(items):
            row = {
                "id": f"{prefix}-{index:05d}",
                "problem": item.text,
                "answer": str(item.answer),
                "solution": item.solution(),
            }
            file.write(json.dumps(row) + "\n")


def save_model(path: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Save a Hugging Face directory: weights, configurations, and the tokenizer with its chat template."""
    if path.exists():
        shutil.rmtree(path)
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def main(argv: Sequence[str] | None = None) -> None:
    """Create everything in ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("examples/demo"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("data", "teacher", "student"), help="create only this part")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    began = time.time()

    args.out.mkdir(parents=True, exist_ok=True)
    heldout, training, forbidden = draw_sets(args.seed)
    write_jsonl(args.out / "train.jsonl", "train", training)
    write_jsonl(args.out / "heldout.jsonl", "heldout", heldout)
    tokenizer = train_tokenizer(args.seed, VOCAB_LIMIT)
    print(
        f"data: {len(training)} training and {len(heldout)} held-out problems; {len(tokenizer)} token ids", flush=True
    )

    for recipe in (STUDENT, TEACHER):
        if args.only not in (None, recipe.writer):
            continue
        model = train(recipe, tokenizer, forbidden, args.seed)
        save_model(args.out / recipe.writer, model, tokenizer)
        figures = ", ".join(
            f"{name} {accuracy(model, tokenizer, heldout[:CHECK_SIZE], temperature, args.seed):.3f}"
            for name, temperature in (("greedy", 0.0), ("temperature .6", 0.6), ("temperature 1", 1.0))
        )
        print(f"{recipe.writer}: {model.num_parameters():,} parameters; held-out accuracy {figures}", flush=True)
    print(f"done in {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
