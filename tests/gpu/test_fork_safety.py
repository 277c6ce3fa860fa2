"""A process that asked for GPUs can start vLLM's engine."""

import pytest


@pytest.fixture(scope="module")
def outcomes(pretended_gpu):
    return pretended_gpu.answer("workers")


def test_the_engine_can_use_the_gpu_after_our_set_up(outcomes):
    assert outcomes["our_set_up"] == "uses pretended H100"


def test_without_our_set_up_it_cannot(outcomes):
    assert "Cannot re-initialize CUDA in forked subprocess" in outcomes["nothing"]


@pytest.mark.parametrize("case", ["nvml_only", "spawn_only"])
def test_each_of_its_two_variables_is_enough(outcomes, case):
    assert outcomes[case] == "uses pretended H100"
