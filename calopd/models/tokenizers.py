"""Tokenizer loading, and the check that teacher and student share a vocabulary."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calopd.core.canary_scores import TEXT
from calopd.core.errors import ConfigError, VocabularyMismatch


def load_tokenizer(path: str | Path) -> Any:
    """Load the tokenizer of a model directory or hub id, without remote code."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no tokenizer at {path}: {str(error).splitlines()[0]}") from None
    if not tokenizer.chat_template:
        raise ConfigError(f"the tokenizer at {path} has no chat template: use an instruct model")
    return tokenizer


def canary_ids(tokenizer: Any) -> np.ndarray:
    """The tokens of the canary text, int32."""
    return np.asarray(tokenizer.encode(TEXT, add_special_tokens=False), dtype=np.int32)


def stop_ids(path: str | Path, tokenizer: Any) -> list[int]:
    """Token ids that end a response: the EOS ids of the tokenizer and of the generation configuration."""
    from transformers import GenerationConfig

    try:
        named = GenerationConfig.from_pretrained(str(path)).eos_token_id
    except OSError:
        named = None
    ids = {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
    return sorted(number for number in ids if number is not None)


def vocabulary(tokenizer: Any) -> list[str]:
    """The token of id i at index i; '' for an id without a token."""
    tokens: Mapping[str, int] = tokenizer.get_vocab()
    out = [""] * (max(tokens.values()) + 1)
    for token, number in tokens.items():
        out[number] = token
    return out


def fingerprint(tokens: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for number, token in enumerate(tokens):
        digest.update(f"{number}\t{token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def check_same_vocabulary(student: Sequence[str], teacher: Sequence[str]) -> None:
    """Raise VocabularyMismatch, naming the first ids that differ, unless both vocabularies are identical."""
    width = max(len(student), len(teacher))
    ours, theirs = (list(tokens) + [""] * (width - len(tokens)) for tokens in (student, teacher))
    differ = [i for i in range(width) if ours[i] != theirs[i]]
    if differ:
        shown = "; ".join(f"id {i}: student {ours[i]!r}, teacher {theirs[i]!r}" for i in differ[:5])
        raise VocabularyMismatch(
            f"teacher and student differ in {len(differ)} of {width} token ids ({shown}): "
            "the response ids would mean other tokens to the teacher. Choose a teacher and a student of one family."
        )
