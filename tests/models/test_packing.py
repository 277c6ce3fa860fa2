from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from calopd.core.errors import ConfigError
from calopd.models import packing
from calopd.models.packing import MAX_PADDING, Packed, attend, has_kernel, pack, use_packed_attention

SEQUENCES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=12)


@given(SEQUENCES, st.booleans())
def test_every_row_is_computed_once_in_buckets_and_in_runs(lists, share):
    sequences = [np.array(ids, np.int32) for ids in lists]
    packed = pack(sequences, share=share)
    ids, positions = packed.ids[0].numpy(), packed.positions[0].numpy()
    for sequence, rows in zip(sequences, packed.rows, strict=True):
        assert np.array_equal(ids[rows], sequence)
        assert np.array_equal(positions[rows], np.arange(len(sequence)))
    prefixes = [tuple(ids[:n]) for ids in lists for n in range(1, len(ids) + 1)]
    assert packed.computed == len(set(prefixes) if share else prefixes)
    buckets = packed.buckets
    assert torch.equal(buckets.rows[buckets.places], torch.arange(packed.computed))
    assert sum(count * longest for count, longest in buckets.shapes) == len(buckets.rows)
    assert packed.padding == len(buckets.rows) - sum(map(len, lists))
    assert packed.padding <= MAX_PADDING * len(buckets.rows) + 1e-9
    runs = packed.runs
    assert runs.query_borders[[0, -1]].tolist() == [0, packed.computed]
    assert (runs.query_borders.diff() > 0).all()
    assert share or runs.key_rows is None


LISTS = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 9], [5], [1, 2, 3, 4, 5, 8, 8, 8, 8, 8], [1, 2, 3, 9], [1, 2]]


def varlen_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_borders: Tensor,
    key_borders: Tensor,
    longest_query: int,
    longest_key: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """torch's `varlen_attn` by its documentation, which has no kernel for CPUs; causality is aligned to the end."""
    assert enable_gqa
    assert query_borders.dtype == key_borders.dtype == torch.int32
    queries, keys = query_borders.diff().tolist(), key_borders.diff().tolist()
    assert (max(queries), max(keys)) == (longest_query, longest_key)
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    out = []
    for (a, b), (c, d) in zip(pairwise(query_borders.tolist()), pairwise(key_borders.tolist()), strict=True):
        distance = torch.arange(d - c - (b - a), d - c)[:, None] - torch.arange(d - c)
        left, right = window_size
        seen = distance >= -right
        if left >= 0:
            seen &= distance <= left
        scores = torch.einsum("qhd,khd->hqk", q[a:b], k[c:d]) * scale
        out.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v[c:d]))
    return torch.cat(out)


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("kernel", [False, True])
def test_attention_and_its_gradients_are_those_of_each_sequence_alone(monkeypatch, window, share, kernel):
    monkeypatch.setattr(packing, "has_kernel", lambda *_: kernel)
    monkeypatch.setattr(packing, "varlen_attn", varlen_attn)
    packed = pack([np.array(ids, np.int32) for ids in LISTS], share=share)
    torch.manual_seed(0)
    tensors = tuple(torch.randn(1, heads, packed.computed, 8, requires_grad=True) for heads in (4, 2, 2))
    query, key, value = tensors
    out = attend(None, query, key, value, None, packed=packed, scaling=0.3, sliding_window=window)[0]
    assert out.shape == (1, packed.computed, 4, 8)
    chosen = torch.randn(out.shape)
    gradients = torch.autograd.grad((out * chosen).sum(), tensors)

    expected = torch.zeros_like(out)
    for rows in packed.rows:
        q, k, v = (t[0, :, rows] for t in tensors)
        distance = torch.arange(len(rows))[:, None] - torch.arange(len(rows))
        seen = (distance >= 0) & (distance < (window or len(rows)))
        k, v = (t.repeat_interleave(2, 0) for t in (k, v))
        alone = (q @ k.transpose(1, 2) * 0.3).masked_fill(~seen, -torch.inf).softmax(-1) @ v
        # Sequences that share a row agree on it: any of them may set it.
        expected = expected.index_copy(1, torch.from_numpy(rows), alone.transpose(0, 1)[None])
    assert torch.allclose(out, expected, atol=1e-6)
    for one, other in zip(gradients, torch.autograd.grad((expected * chosen).sum(), tensors), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
PACKABLE = {
    "qwen3": Qwen3Config(**SMALL),
    "qwen3_moe": Qwen3MoeConfig(**SMALL, **EXPERTS),
    "llama": LlamaConfig(**SMALL),
    "mistral": MistralConfig(**SMALL, sliding_window=4),
    "gemma3": Gemma3TextConfig(**SMALL, layer_types=["sliding_attention", "full_attention"], sliding_window=4),
}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", PACKABLE)
def test_models_of_transformers_read_packed_sequences_as_if_alone(monkeypatch, name, recompute):
    torch.manual_seed(0)
    lm: Any = AutoModelForCausalLM.from_config(PACKABLE[name], dtype=torch.float32, attn_implementation="sdpa")
    with torch.no_grad():
        for parameter in lm.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    packed = pack([np.array(ids, np.int32) for ids in LISTS], share=False)
    chosen = torch.randn(packed.computed, 32)
    lm.train()

    def gradients() -> dict[str, Tensor]:
        found = {n: p.grad for n, p in lm.named_parameters() if p.grad is not None}
        lm.zero_grad(set_to_none=True)
        return found

    alone = torch.empty(packed.computed, 32)
    for ids, rows in zip(LISTS, packed.rows, strict=True):
        alone[rows] = lm.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    (alone * chosen).sum().backward()
    expected = gradients()

    use_packed_attention("student.path", lm)
    if recompute:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    masks = []
    original = packing.attend

    def watched(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **others: Any) -> Any:
        masks.append(mask)
        return original(module, q, k, v, mask, **others)

    monkeypatch.setitem(AttentionInterface._global_mapping, packing.ATTENTION, watched)
    hidden = lm.model(
        input_ids=packed.ids, position_ids=packed.positions, use_cache=False, packed=packed
    ).last_hidden_state[0]
    (hidden * chosen).sum().backward()
    assert len(masks) == (4 if recompute else 2)
    assert all(mask is None for mask in masks)
    assert torch.allclose(hidden, alone, atol=1e-4)
    seen = gradients()
    assert seen.keys() == expected.keys()
    norm = sum(g.norm() ** 2 for g in expected.values()) ** 0.5
    assert max((seen[n] - expected[n]).norm() for n in seen) < 1e-5 * norm


def test_models_whose_layers_carry_a_state_are_refused():
    config = Qwen3NextConfig(**{**SMALL, "num_hidden_layers": 4, **EXPERTS})
    with torch.device("meta"):
        lm = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ConfigError, match=r"student.path: Qwen3NextForCausalLM has layers of linear_attention"):
        use_packed_attention("student.path", lm)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (Gemma2Config(**SMALL), "softcap"),
        (GptOssConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1), "s_aux"),
    ],
    ids=["gemma2", "gpt_oss"],
)
def test_attention_that_changes_the_scores_is_refused(config, what):
    lm: Any = AutoModelForCausalLM.from_config(config)
    use_packed_attention("student.path", lm)
    packed = pack([np.array([1, 2, 3])])
    with pytest.raises(ConfigError, match=what):
        lm.model(input_ids=packed.ids, position_ids=packed.positions, use_cache=False, packed=packed)


def test_the_kernel_takes_bfloat16_on_cuda_only():
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert has_kernel(cuda, torch.bfloat16, 128, 128)
    assert not has_kernel(cuda, torch.float32, 128, 128)
    assert not has_kernel(cpu, torch.bfloat16, 128, 128)
    assert not has_kernel(cuda, torch.bfloat16, 192, 128)
    assert not has_kernel(cuda, torch.bfloat16, 36, 36)
    assert not has_kernel(cuda, torch.bfloat16, 512, 512)


def test_a_moved_packing_keeps_its_parts():
    packed = pack([np.array(ids, np.int32) for ids in LISTS])
    moved = packed.to(torch.device("meta"))
    assert isinstance(moved, Packed)
    assert moved.runs.key_rows is not None
    assert {t.device.type for t in (moved.ids, moved.positions, moved.buckets.rows, moved.runs.key_rows)} == {"meta"}
    assert moved.buckets.shapes == packed.buckets.shapes


def test_a_compiled_layer_is_not_compiled_again_for_every_packing():
    torch._dynamo.reset()
    lm: Any = AutoModelForCausalLM.from_config(LlamaConfig(**{**SMALL, "num_hidden_layers": 1}))
    use_packed_attention("student.path", lm)
    lm.model.layers[0].compile(backend="eager")

    def read(*lengths: int) -> None:
        packed = pack([np.arange(n) for n in lengths], share=False)
        lm.model(input_ids=packed.ids, position_ids=packed.positions, use_cache=False, packed=packed)

    read(3, 4, 9)
    read(5, 6)  # now the number of rows is a variable
    with torch._dynamo.config.patch(error_on_recompile=True):
        read(2, 3, 7, 13, 20)
    torch._dynamo.reset()
