"""Teacher and learner on fake CUDA tensors: kernels, data types and devices are those that a GPU should see."""

import pytest

CASES = (
    "dense teacher", "moe teacher", "split head", "sampler", "learner", "learner of adapters", "learner on two nodes",
    "learner offloaded", "learner with a frozen copy", "facts of a report",
)  # fmt: skip
SEEN = {
    "rounded logits": "logits are bfloat16",
    "no kernel": "attention does not run in varlen_attn",
    "left on CPU": "found at least two devices",
    "looped AdamW": "AdamW is not fused",
}


@pytest.fixture(scope="module")
def faults(pretended_gpu):
    return pretended_gpu.answer("forward")


@pytest.mark.parametrize("case", CASES)
def test_a_pass_on_a_gpu_has_no_fault(faults, case):
    assert faults[""][case] == []


@pytest.mark.parametrize("planted", SEEN)
def test_a_planted_defect_is_seen(faults, planted):
    assert faults[planted]
    for case, found in faults[planted].items():
        assert any(SEEN[planted] in fault for fault in found), case
