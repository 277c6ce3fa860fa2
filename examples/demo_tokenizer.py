"""A small byte-level BPE tokenizer with single digits and a ChatML template, trained on the demo's texts."""

from __future__ import annotations

import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from calopd.core.contexts import CONTEXTS, SYSTEM_PROMPT
from examples.discourse import SLOTS, Writer
from examples.word_problems import draw_problem

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ORDINARY = ("<think>", "</think>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def corpus(seed: int, size: int = 2000) -> list[str]:
    """Training texts: problems, solutions and responses, and the fixed texts repeated often enough to be merged."""
    rng = random.Random(seed)
    writers = [Writer("teacher"), Writer("student")]
    texts = [SYSTEM_PROMPT, "system\n", "user\n", "assistant\n", *(context.text for context in CONTEXTS.values())] * 100
    texts += [f" {phrase}" for phrases in SLOTS.values() for phrase, _, _ in phrases] * 50
    for _ in range(size):
        problem = draw_problem(rng)
        texts += [problem.text, problem.solution(), rng.choice(writers).response(rng, problem)]
    return texts


def train_tokenizer(seed: int, vocab_size: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer and add the special tokens and the chat template."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL) - len(ORDINARY),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=20,
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(seed), trainer)
    bpe.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    bpe.add_tokens([AddedToken(token, normalized=False, special=False) for token in ORDINARY])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=1024
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
