"""`--gpus` and `--replicas` of the sampling commands."""

import argparse
from pathlib import Path

import pytest

from calopd.cli.gpu_arguments import add_gpu_arguments, replica_gpus
from calopd.core.errors import ConfigError

PLACED = """
[data]
train = "t"
[student]
path = "s"
[teacher]
path = "t"
[resources]
teacher = 1
rollout = [4, 5]
learner = 1
"""


def gpus_of(*words: str, each: int = 1) -> list[tuple[int, ...]]:
    parser = argparse.ArgumentParser()
    add_gpu_arguments(parser)
    parser.add_argument("--tensor-parallel-size", type=int, default=each)
    return replica_gpus(parser.parse_args(words))


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")


def test_one_process_on_every_group_of_gpus() -> None:
    assert gpus_of() == [()]
    assert gpus_of("--gpus", "2") == [(2,)]
    assert gpus_of("--gpus", "0,1, 3") == [(0,), (1,), (3,)]
    assert gpus_of("--gpus", "0,1,2,3", each=2) == [(0, 1), (2, 3)]
    assert gpus_of("--gpus", "0,1", "--replicas", "2") == [(0,), (1,)]


def test_replicas_without_named_gpus_take_the_first_visible_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus_of("--replicas", "2", each=2) == [(0, 1), (2, 3)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus_of("--replicas", "3") == [(), (), ()]


def test_all_gpus_of_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5")
    file = tmp_path / "run.toml"
    file.write_text(PLACED)
    assert gpus_of("--gpus", str(file)) == [(0,), (1,), (4,), (5,)]
    file.write_text(PLACED.partition("[resources]")[0])
    with pytest.raises(ConfigError, match=r"run\.toml: the file has no \[resources\] with GPUs"):
        gpus_of("--gpus", str(file))


@pytest.mark.parametrize(
    ("words", "each", "message"),
    [
        (["--gpus", "0,x"], 1, "--gpus 0,x: expected different ids"),
        (["--gpus", "1,1"], 1, "expected different ids"),
        (["--gpus", "3,4"], 1, r"--gpus uses the GPUs 3, 4, but 4 are visible here"),
        (["--gpus", "0,1,2"], 2, "3 GPUs cannot be divided by --tensor-parallel-size 2"),
        (["--gpus", "0,1", "--replicas", "3"], 1, "gives 2 replicas, not 3: leave out --replicas"),
        (["--replicas", "3"], 2, "need 6 GPUs, but 4 are visible: use fewer replicas"),
        (["--replicas", "0"], 1, "expected 1 or more"),
    ],
)
def test_wrong_choices_are_explained(words: list[str], each: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gpus_of(*words, each=each)
