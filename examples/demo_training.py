"""Training of the demo's two small Qwen3 models on worked word problems and arithmetic drills."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

import calopd.core.types
from calopd.core.contexts import CONTEXTS, messages
from examples.discourse import Writer
from examples.muon import Muon
from examples.word_problems import Problem, drill, problems

MAX_NEW_TOKENS = 96


@dataclass(frozen=True)
class Recipe:
    """Training recipe of a model; ``stop_at`` stops training before the end of the schedule."""

    writer: str
    layers: int
    steps: int
    decay_to: float
    context_share: float
    learning_rate: float = 5e-3
    batch: int = 16
    drills: int = 8
    drill_length: int = 14
    drill_only_steps: int = 150
    stop_at: int | None = None


def build_model(layers: int, tokenizer: PreTrainedTokenizerBase, seed: int) -> Qwen3ForCausalLM:
    """A newly initialised Qwen3 model of hidden size 128."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def prompt_text(tokenizer: PreTrainedTokenizerBase, problem: str, intervention: str = "") -> str:
    """The rendered prompt, ending with the assistant marker."""
    turns = messages(calopd.core.types.Problem("", problem, ""), intervention)
    return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)


def fill(context: str, problem: Problem, other: Problem, rng: random.Random) -> str:
    """The intervention text of a context; a negative context gets a wrong answer or the solution of ``other``."""
    if context == "c0":
        return ""
    answer, solution = problem.answer, problem.solution()
    if CONTEXTS[context].polarity == "-":
        digits = range(1, 10) if answer < 10 else range(10, 100)
        answer, solution = rng.choice([value for value in digits if value != answer]), other.solution()
    return CONTEXTS[context].fill({"answer": str(answer), "solution": solution})


class Batches:
    """An endless stream of (ids, loss weights): problems with responses, and drills."""

    def __init__(self, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, taken: set[str], seed: int) -> None:
        self.recipe, self.tokenizer = recipe, tokenizer
        self.rng = random.Random(f"{recipe.writer}/{seed}")
        self.stream = problems(self.rng, set(taken))
        self.writer = Writer(recipe.writer, ("c0", *CONTEXTS))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def worked(self) -> Iterator[tuple[list[int], list[float]]]:
        """Problems with responses; the loss is on the response."""
        for _ in range(self.recipe.batch):
            problem, other = next(self.stream), next(self.stream)
            with_context = self.rng.random() < self.recipe.context_share
            context = self.rng.choice(list(CONTEXTS)) if with_context else "c0"
            prompt = prompt_text(self.tokenizer, problem.text, fill(context, problem, other, self.rng))
            prompt_ids = self.encode(prompt)
            reply_ids = self.encode(self.writer.response(self.rng, problem, context) + "<|im_end|>")
            yield prompt_ids + reply_ids, [0.0] * len(prompt_ids) + [1.0] * len(reply_ids)

    def drills(self, count: int) -> Iterator[tuple[list[int], list[float]]]:
        """Rows of equations; the loss is on the digits of the results."""
        for _ in range(count):
            ids: list[int] = []
            weights: list[float] = []
            for text in drill(self.rng, self.recipe.drill_length):
                left, right = text.split("=")
                for piece, weight in ((f" {left}=", 0.0), (right, 1.0), (".", 0.0)):
                    piece_ids = self.encode(piece)
                    ids += piece_ids
                    weights += [weight] * len(piece_ids)
            yield ids, weights


def row_loss(model: Qwen3ForCausalLM, rows: Sequence[tuple[list[int], list[float]]], pad: int) -> torch.Tensor:
    """Mean cross-entropy over the weighted tokens of right-padded rows."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([row + [pad] * (width - len(row)) for row, _ in rows])
    weights = torch.tensor([row + [0.0] * (width - len(row)) for _, row in rows])
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
    keep = weights[:, 1:] > 0
    return cross_entropy(model.lm_head(hidden[keep]), ids[:, 1:][keep])


def train(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, taken: set[str], seed: int, log_every: int = 50
) -> Qwen3ForCausalLM:
    """Train one model, printing the loss, the elapsed time and the remaining time."""
    model = build_model(recipe.layers, tokenizer, seed).train()
    batches = Batches(recipe, tokenizer, taken, seed)
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name]
    optimizers = [
        Muon(matrices, lr=recipe.learning_rate),
        torch.optim.AdamW(others, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01),
    ]
    pad, began = tokenizer.pad_token_id, time.time()
    last = recipe.stop_at or recipe.steps
    for step in range(1, last + 1):
        progress = step / recipe.steps
        cosine = recipe.decay_to + (1 - recipe.decay_to) * 0.5 * (1 + math.cos(math.pi * progress))
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = recipe.learning_rate * min(1.0, step / 30) * cosine
        if step <= recipe.drill_only_steps:
            loss = arithmetic = row_loss(model, list(batches.drills(2 * recipe.drills)), pad)
        else:
            arithmetic = row_loss(model, list(batches.drills(recipe.drills)), pad)
            loss = arithmetic + row_loss(model, list(batches.worked()), pad)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if step % log_every == 0 or step == last:
            spent = time.time() - began
            left = spent * (last - step) / step
            figures = f"loss {loss.item():.3f} arithmetic {arithmetic.item():.3f}"
            print(f"{recipe.writer} {step}/{last} {figures} {spent:.0f} s, {left:.0f} s left", flush=True)
    return model.eval()


def boxed(text: str) -> str | None:
    """Content of the last ``\\boxed{}``."""
    found = re.findall(r"\\boxed\{([^{}]*)\}", text)
    return found[-1].strip() if found else None


@torch.no_grad()
def accuracy(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase, tasks: Sequence[Problem], temperature: float, seed: int
) -> float:
    """Share of problems answered correctly under c0; temperature 0 is greedy."""
    torch.manual_seed(seed)
    prompts = [prompt_text(tokenizer, task.text) for task in tasks]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    out = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=MAX_NEW_TOKENS,
        **(sampling or {"do_sample": False}),
    )
    texts = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [boxed(text) == str(task.answer) for text, task in zip(texts, tasks, strict=True)]
    return sum(right) / len(right)
