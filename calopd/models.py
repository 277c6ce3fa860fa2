"""Loading a causal language model the one safe way: safetensors, no remote code, one clear line where it fails."""

from typing import Any

import torch

from calopd.errors import ConfigError


def load_causal_lm(key: str, path: str, dtype: str) -> Any:
    """The model at `path`; `key` is the setting that named it."""
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key} = {path!r}: no model there ({str(error).splitlines()[0]})") from None
    if getattr(model.lm_head, "bias", None) is not None:
        raise ConfigError(f"{key} = {path!r}: an LM head with a bias is not supported")
    return model
