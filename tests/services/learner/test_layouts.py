"""Layouts of the learner: one rank, and two nodes with two ranks each; offloaded, compiled; and their checkpoints."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from calopd.core.errors import ConfigError
from calopd.doctor.model_jobs import LAUNCHER
from calopd.evaluation.checkpoint_export import export_checkpoint
from calopd.rundir import checkpoints
from calopd.rundir.layout import RunDir
from calopd.rundir.policies import load_policy
from services.learner.ranks import mesh_shape
from tests.services.learner.test_gradients import difference
from tests.services.processes import ROOT

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("ranks", "per_node", "group", "shape"),
    [
        (1, 1, "node", (1,)),
        (4, 4, "node", (4,)),
        (4, 2, "node", (2, 2)),
        (16, 8, "node", (2, 8)),
        (16, 8, "all", (16,)),
    ],
)
def test_a_node_is_one_group_of_shards(ranks, per_node, group, shape):
    assert mesh_shape(ranks, per_node, group) == shape


def test_nodes_with_different_numbers_of_ranks_are_refused():
    with pytest.raises(ConfigError, match=r'got 5 ranks and 3 on this one: .* learner.shard = "all"'):
        mesh_shape(5, 3, "node")


def test_the_allocator_is_configured_before_torch_is_imported():
    code = """
import os, runpy, sys
sys.argv = ["learner", "--help"]
try:
    runpy.run_module("services.learner", run_name="__main__")
except SystemExit:
    pass
assert "torch" not in sys.modules
print(os.environ["PYTORCH_ALLOC_CONF"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "expandable_segments:True", done.stderr


def run(model: Path, folder: Path, ranks: int, nodes: int) -> dict[str, Any]:
    command = [sys.executable, "-m", LAUNCHER, f"--nproc-per-node={ranks}"]
    command += ["-m", "tests.services.learner.layouts", str(model), str(folder), str(nodes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = torch.load(folder / f"{ranks}.pt", weights_only=True)
    return loaded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    (folder / "run").mkdir()
    (folder / "run" / "config.toml").write_text("[learner]\n")
    return folder


@pytest.fixture(scope="module")
def one_rank(tiny, folder):
    return run(tiny.student, folder, 1, 1)


@pytest.fixture(scope="module")
def two_nodes(tiny, folder, one_rank):
    """After the one rank, whose checkpoint it loads."""
    return run(tiny.student, folder, 4, 2)


@slow
def test_two_nodes_of_two_ranks_form_the_gradient_of_one(one_rank, two_nodes):
    assert two_nodes["mesh"] == (2, 2)
    assert difference(one_rank["gradient"], two_nodes["gradient"]) < 1e-5


@slow
def test_a_checkpoint_is_loaded_in_another_layout(one_rank, two_nodes, folder):
    """One rank's by four, and that of four by one process without ranks."""
    assert_equal(two_nodes["loaded"], one_rank["saved"])
    checkpoint = RunDir(folder / "run").checkpoint(4)
    assert_equal(load_policy(export_checkpoint(checkpoint, folder / "exported")), two_nodes["saved"])


@slow
@pytest.mark.parametrize("layout", ["one_rank", "two_nodes"])
def test_a_checkpoint_holds_the_weights_of_its_step_although_training_went_on(request, folder, layout):
    result = request.getfixturevalue(layout)
    step = 1 if layout == "one_rank" else 4
    checkpoint = RunDir(folder / "run").checkpoint(step)
    assert_equal(load_policy(export_checkpoint(checkpoint, folder / f"exported-{step}")), result["saved"])
    assert any(not torch.equal(result["saved"][name], result["changed"][name]) for name in result["saved"])
    record = checkpoints.read_record(checkpoint)
    assert (record.step, record.used) == (step, {"step-000000": [1, 2, 3]})


@slow
@pytest.mark.parametrize("layout", ["one_rank", "two_nodes"])
def test_a_policy_is_the_student_rounded_to_the_data_type_of_the_rollout(request, layout):
    result = request.getfixturevalue(layout)
    assert_equal(result["policy"], {name: tensor.bfloat16() for name, tensor in result["saved"].items()})
    assert "lm_head.weight" not in result["policy"], "the embedding is tied, and is published once"


@slow
def test_adapters_are_merged_by_each_rank_for_its_own_rows(two_nodes):
    streamed, by_hand = two_nodes["lora"]["streamed"], two_nodes["lora"]["by hand"]
    assert streamed.keys() == by_hand.keys() - {"lm_head.weight"}
    for name, tensor in streamed.items():
        torch.testing.assert_close(tensor, by_hand[name], rtol=1e-5, atol=1e-6)


@slow
def test_a_disk_that_refuses_a_checkpoint_is_an_error_that_says_so(one_rank, two_nodes, folder):
    """And the checkpoint before it stays the newest."""
    assert "cannot write a checkpoint to" in one_rank["refusal"]
    assert "the disk may be full" in one_rank["refusal"]
    assert checkpoints.steps(RunDir(folder / "run")) == [1, 4]
    assert not list((folder / "run" / "checkpoints").glob("*.tmp"))


@slow
@pytest.mark.parametrize("variant", ["offload", "compiled"])
def test_offloaded_and_compiled_layers_form_the_same_gradient_and_step(one_rank, variant):
    """With CALOPD_TEST_INDUCTOR set, layers are compiled to machine code; else they are only traced."""
    assert difference(one_rank["gradient"], one_rank[variant]) < 1e-5
    fused = one_rank[f"{variant} fused"]
    for name, tensor in one_rank["saved"].items():
        torch.testing.assert_close(fused[name], tensor, rtol=1e-4, atol=1e-5)


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
