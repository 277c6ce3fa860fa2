"""What vLLM is asked for when the teacher runs in it on a GPU."""

import pytest
import torch
import vllm

from calopd.config import load_config
from calopd.planning.teacher_limits import limited_teacher
from services.teacher_scorer.engines import vllm_scorer
from tests.services.processes import ROOT


class Started(Exception):
    """vLLM would start here."""


@pytest.mark.parametrize(("name", "sized"), [("single-gpu-80gb", True), ("qwen3-4b-to-1.7b", False)])
def test_beside_other_roles_the_cache_has_a_size_of_its_own(tiny, monkeypatch, name, sized):
    given = {}

    def start(arguments):
        given.update(vars(arguments))
        raise Started

    monkeypatch.setattr(vllm.LLMEngine, "from_engine_args", start)
    monkeypatch.setattr(vllm_scorer, "set_vllm_environment", lambda *_: None)
    monkeypatch.setattr(vllm_scorer, "choose_device", lambda _: torch.device("cuda"))
    settings = ['teacher.engine="vllm"', "teacher.gpu_memory_utilization=0.5"]
    teacher = limited_teacher(load_config(ROOT / "configs" / f"{name}.toml", settings, {}))
    with pytest.raises(Started):
        vllm_scorer.VllmScorer.configured(teacher.model_copy(update={"path": str(tiny.teacher)}))
    expected = int(teacher.kv_cache_gib * 2**30) if sized else None
    assert given["kv_cache_memory_bytes"] == expected
    assert expected is None or expected > 2**30
    assert given["gpu_memory_utilization"] == 0.5
