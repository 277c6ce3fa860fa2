"""config.json of the paper's models, as far as sizes need it, so that memory is known before a download."""

from typing import Any

_QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}
_4B = {
    **_QWEN3,
    "hidden_size": 2_560,
    "intermediate_size": 9_728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
}

KNOWN_MODELS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-1.7B": {
        **_QWEN3,
        "hidden_size": 2_048,
        "intermediate_size": 6_144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
    "Qwen/Qwen3-4B": _4B,
    "Qwen/Qwen3-4B-Thinking-2507": {**_4B, "max_position_embeddings": 262_144},
    "Qwen/Qwen3-8B": {
        **_QWEN3,
        "hidden_size": 4_096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "Qwen/Qwen3-30B-A3B-Thinking-2507": {
        **_QWEN3,
        "model_type": "qwen3_moe",
        "hidden_size": 2_048,
        "intermediate_size": 6_144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 262_144,
        "tie_word_embeddings": False,
    },
}
"""Hub id -> the values of its config.json that shapes are computed from."""
