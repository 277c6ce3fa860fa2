"""Loading of causal language models: safetensors only, no remote code, one-line errors."""

import json
from pathlib import Path
from typing import Any

import torch

from calopd.core.cpu_products import use_cpu_products
from calopd.core.errors import ConfigError
from calopd.models.model_files import weights_digest


def load_causal_lm(key: str, path: str, dtype: torch.dtype, device: torch.device | None = None) -> Any:
    """Load the model at `path`; `key` is the setting that names it, for error messages.

    With a `device`, each tensor goes from its file straight to it: no copy of the model is made in main memory.
    """
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            device_map=None if device is None else {"": device},
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key} = {path!r}: cannot load a model ({str(error).splitlines()[0]})") from None
    if getattr(model.lm_head, "bias", None) is not None:
        raise ConfigError(f"{key} = {path!r}: an LM head with a bias is not supported")
    use_cpu_products(model)
    return model


def revision(path: str, config: str) -> str:
    """Identifier of the weights: a digest of the configuration and of samples spread over the weight files."""
    return weights_digest(json.dumps(json.loads(config), sort_keys=True), sorted(Path(path).glob("*.safetensors")))
