"""The memory of `calopd eval` and `calopd data solve` on GPUs."""

import pytest

from calopd.cli.registry import find_command
from calopd.core.errors import ConfigError
from calopd.doctor import sampled_model
from calopd.doctor.gpu_checks import Gpu
from calopd.doctor.sampled_model import require_gpu_memory

MODEL = "Qwen/Qwen3-30B-A3B-Thinking-2507"


@pytest.fixture
def check(monkeypatch):
    """The check on a host with GPUs of a memory."""
    monkeypatch.setattr("torch.version.cuda", "13.0")

    def check(memory, *words, count=8, gpus=((),)):
        found = [Gpu(index, f"GPU-{index}", "GPU", memory, 0.0, "580.1", "9.0") for index in range(count)]
        monkeypatch.setattr(sampled_model, "usable_gpus", lambda: found)
        command, rest = find_command(["data", "solve", "in.jsonl", "-o", "out.jsonl", "--model", MODEL, *words])
        require_gpu_memory("--model", MODEL, command.parser().parse_args(rest), gpus)

    return check


@pytest.mark.parametrize(
    ("memory", "words", "count", "advice"),
    [
        (44.4, [], 8, "--tensor-parallel-size 2"),
        (23.6, ["--tensor-parallel-size", "2"], 8, "--tensor-parallel-size 4"),
        (44.4, [], 1, "larger GPUs or a smaller model"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_the_number_of_gpus_that_it_needs(
    check, memory, words, count, advice
):
    with pytest.raises(ConfigError, match=rf"vLLM needs \d+\.\d GiB on each GPU, and .* usable: use {advice}$"):
        check(memory, *words, count=count)


def test_a_model_that_fits_and_one_without_gpus_pass(check):
    check(79.1)
    check(44.4, "--tensor-parallel-size", "2", gpus=((0, 1), (2, 3)))
    check(44.4, "--engine", "torch")
    check(44.4, count=0)
