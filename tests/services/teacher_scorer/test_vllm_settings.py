"""What vLLM is asked for when the teacher runs in it on a GPU."""

import pytest

from calopd.config import load_config
from calopd.config.sections import TeacherSection
from calopd.planning.teacher_limits import limited_teacher
from services.teacher_scorer.engines.vllm_scorer import VllmScorer
from tests.services.processes import ROOT


@pytest.mark.parametrize(("name", "sized"), [("single-gpu-80gb", True), ("qwen3-4b-to-1.7b", False)])
def test_beside_other_roles_the_cache_has_a_size_of_its_own(tiny, vllm_settings, name, sized):
    settings = ['teacher.engine="vllm"', "teacher.gpu_memory_utilization=0.5"]
    limited = limited_teacher(load_config(ROOT / "configs" / f"{name}.toml", settings, {}))
    teacher = limited.model_copy(update={"path": str(tiny.teacher)})
    given = vllm_settings(lambda: VllmScorer.configured(teacher))
    expected = int(teacher.kv_cache_gib * 2**30) if sized else None
    assert given["kv_cache_memory_bytes"] == expected
    assert expected is None or expected > 2**30
    assert given["gpu_memory_utilization"] == 0.5


@pytest.mark.parametrize("quantization", ["", "fp8"])
def test_the_settings_of_a_split_teacher_reach_vllm(tiny, vllm_settings, quantization):
    section = TeacherSection(
        path=str(tiny.teacher), engine="vllm", tensor_parallel_size=4, expert_parallel=True, quantization=quantization,
        batch_tokens=4_096, max_tokens=300,
    )  # fmt: skip
    given = vllm_settings(lambda: VllmScorer.configured(section))
    assert (given["tensor_parallel_size"], given["enable_expert_parallel"]) == (4, True)
    assert given["quantization"] == (quantization or None)
    assert (given["max_num_batched_tokens"], given["max_model_len"]) == (4_096, 300)
    assert given["worker_extension_cls"].endswith("response_scorer.ResponseScorer")
