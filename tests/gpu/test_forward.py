"""Teacher and learner on fake CUDA tensors: kernels, data types and devices are those that a GPU should see."""

import pytest

TEACHERS = ("dense teacher", "moe teacher")
LEARNERS = ("learner", "learner of adapters")


@pytest.fixture(scope="module")
def faults(pretended_gpu):
    return pretended_gpu.answer("forward")


@pytest.mark.parametrize("case", [*TEACHERS, *LEARNERS])
def test_a_pass_on_a_gpu_has_no_fault(faults, case):
    assert faults[""][case] == []


@pytest.mark.parametrize(
    ("planted", "seen", "cases"),
    [
        ("rounded logits", "logits are bfloat16", TEACHERS + LEARNERS),
        ("no kernel", "attention does not run in varlen_attn", TEACHERS + LEARNERS),
        ("left on CPU", "found at least two devices", TEACHERS + LEARNERS),
        ("looped AdamW", "AdamW is not fused", LEARNERS),
    ],
)
def test_a_planted_defect_is_seen(faults, planted, seen, cases):
    for case in cases:
        assert any(seen in fault for fault in faults[planted][case]), case
