"""Models that are split over GPUs or quantised: what vLLM refuses, and what is not compared."""

import json

import pytest

from calopd.doctor.case import Case
from calopd.doctor.full_checks import teacher_against_model, teacher_better
from calopd.doctor.model_checks import split_heads
from calopd.doctor.outcome import Verdict
from tests.doctor.examined import copied, recipe

VLLM = "teacher.engine=vllm"


@pytest.mark.parametrize(
    ("settings", "verdict", "message"),
    [
        ([], Verdict.NOT_CHECKED, "no model is split"),
        (["rollout.tensor_parallel_size=2"], Verdict.PASSED, "Qwen/Qwen3-4B over 2 GPUs"),
        ([VLLM, "teacher.tensor_parallel_size=8", "resources.teacher=8"], Verdict.PASSED, "over 8 GPUs"),
        (
            ["rollout.tensor_parallel_size=3", "resources.rollout=3"],
            Verdict.FAILED,
            "32 attention heads and 8 KV heads",
        ),
        (["rollout.tensor_parallel_size=2", "student.path=none"], Verdict.NOT_CHECKED, "none: no config.json"),
    ],
)
def test_the_heads_of_a_model_that_is_split(settings, verdict, message):
    outcome = split_heads(Case(recipe("qwen3-30b-to-4b", "resources.host_gpus=0", *settings)))
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome
    if verdict is Verdict.FAILED:
        assert outcome.advice == "set rollout.tensor_parallel_size to one of 1, 2, 4, 8, 16, 32"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (['teacher.quantization="fp8"'], 'teacher.quantization is "fp8": a plain forward pass computes other scores'),
        (["teacher.tensor_parallel_size=2"], "the teacher is split over 2 GPUs"),
        ([], "the teacher's files are quantised"),
    ],
)
def test_a_teacher_that_a_plain_pass_cannot_compute_is_not_compared(tiny, tmp_path, settings, message):
    config = copied(tiny, tmp_path, [VLLM, *settings])
    if not settings:
        file = tmp_path / "teacher" / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": {"quant_method": "awq"}}))
    outcome = teacher_against_model(Case(config))
    assert (outcome.verdict, message in outcome.message) == (Verdict.NOT_CHECKED, True), outcome


def test_a_teacher_that_is_quantised_at_loading_is_not_sampled(tiny, tmp_path):
    outcome = teacher_better(Case(copied(tiny, tmp_path, [VLLM, 'teacher.quantization="fp8"'])))
    assert (outcome.verdict, "cannot quantise" in outcome.message) == (Verdict.NOT_CHECKED, True)
