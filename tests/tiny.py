"""Tiny real models and problems, made in a second: a byte-level tokenizer, Qwen3 bodies of random weights."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from calopd.core.contexts import CONTEXTS, SYSTEM_PROMPT
from tests.ports import free_ports

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make_tokenizer(vocabulary_size: int = 400) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        [SYSTEM_PROMPT, *(context.text for context in CONTEXTS.values()), "system user assistant"], trainer
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(
    directory: Path,
    *,
    seed: int,
    layers: int = 2,
    tied: bool = True,
    scale: float = 0.2,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> Path:
    """A Qwen3 of random weights, large enough that its distributions are far from uniform."""
    tokenizer = tokenizer or make_tokenizer()
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, scale)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def make_problems(file: Path, count: int, *, seed: int = 0) -> Path:
    draw = random.Random(seed)
    with file.open("w") as out:
        for number in range(count):
            a, b = draw.randint(1, 50), draw.randint(1, 50)
            row = {"id": f"p{seed}-{number}", "problem": f"What is {a} plus {b}?", "answer": str(a + b)}
            row["solution"] = f"{a}+{b}={a + b}. The answer is \\boxed{{{a + b}}}"
            out.write(json.dumps(row) + "\n")
    return file


@dataclass(frozen=True)
class Tiny:
    """Directories of tiny models of one vocabulary, and problems."""

    root: Path
    teacher: Path
    student: Path
    untied: Path
    train: Path
    heldout: Path

    @classmethod
    def make(cls, root: Path) -> "Tiny":
        tokenizer = make_tokenizer()
        return cls(
            root=root,
            teacher=make_model(root / "teacher", seed=1, tokenizer=tokenizer),
            student=make_model(root / "student", seed=2, layers=1, tokenizer=tokenizer),
            untied=make_model(root / "untied", seed=3, layers=1, tied=False, tokenizer=tokenizer),
            train=make_problems(root / "train.jsonl", 64),
            heldout=make_problems(root / "heldout.jsonl", 16, seed=1),
        )

    def config(self, name: str, *, steps: int = 2, extra: str = "") -> str:
        """A configuration for a run of a few seconds, at ports of its own."""
        teacher, metrics, learner, queue, rollout, *_ = free_ports(8)  # further replicas listen above rollout.port
        return f"""
[run]
name = "{name}"
dir = "{self.root / "runs"}"
steps = {steps}
[data]
train = "{self.train}"
heldout = "{self.heldout}"
max_prompt_tokens = 256
max_context_tokens = 512
[student]
path = "{self.student}"
[teacher]
path = "{self.teacher}"
port = {teacher}
metrics_port = {metrics}
max_tokens = 1024
canary_seconds = 1e6  # once, at the start: later ones would count among the tokens of a test
threads = 1
[rollout]
engine = "torch"
port = {rollout}
max_tokens = 24
max_in_flight = 16
threads = 1
lease_seconds = 10.0
[learner]
port = {learner}
trajectories = 16
learning_rate = 1e-3
micro_batch_tokens = 1024
recompute_activations = false
threads = 1
[evaluation]
problems = 8
every = 2
max_tokens = 24
top_p = 1.0
[queue]
port = {queue}
{extra}"""

    def write_config(self, name: str, *, steps: int = 2, extra: str = "") -> Path:
        file = self.root / f"{name}.toml"
        file.write_text(self.config(name, steps=steps, extra=extra))
        return file
