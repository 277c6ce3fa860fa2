"""The KV cache of a vLLM teacher beside other roles."""

import pytest

from calopd.config import load_config
from calopd.planning.gpus import GIB, GPUS
from calopd.planning.role_needs import role_need
from calopd.planning.teacher_limits import limited_teacher
from tests.services.processes import ROOT

VLLM = ['teacher.engine="vllm"', "teacher.gpu_memory_utilization=0.5"]


def test_on_a_shared_gpu_the_cache_is_what_the_share_leaves():
    """vLLM measures free memory before and after its first pass, and counts the difference as its own."""
    config = load_config(ROOT / "configs" / "single-gpu-80gb.toml", VLLM, {})
    size = limited_teacher(config).kv_cache_gib
    need, share = role_need(config, "teacher"), 0.5 * GPUS["h100"].memory_gib
    assert need.memory.terms["KV cache of one sequence"] / GIB < size < share - need.memory.terms["weights"] / GIB


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("qwen3-4b-to-1.7b", VLLM, 0.0),
        ("single-gpu-80gb", [*VLLM, "teacher.kv_cache_gib=3.5"], 3.5),
        ("single-gpu-80gb", [], 0.0),
    ],
    ids=["gpus of its own", "as the settings say", "torch"],
)
def test_elsewhere_vllm_decides(name, settings, expected):
    assert limited_teacher(load_config(ROOT / "configs" / f"{name}.toml", settings, {})).kv_cache_gib == expected
