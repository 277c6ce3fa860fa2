"""Tiny real models and problems, made in a second: a byte-level tokenizer, Qwen3 bodies of random weights."""

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from calopd.core.contexts import CONTEXTS, SYSTEM_PROMPT

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
