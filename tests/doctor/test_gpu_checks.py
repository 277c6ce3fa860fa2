"""GPUs as nvidia-smi lists them, against the GPUs that the processes of a run see."""

import pytest

from calopd.core.errors import ConfigError
from calopd.doctor.case import Case
from calopd.doctor.checks import CHECKS, Level, examine, require
from calopd.doctor.gpu_checks import driver, gpus, judge_driver, judge_gpus, parse_gpus, role_memory, usable_gpus
from calopd.doctor.outcome import Verdict
from calopd.study.collection import Goal, collect
from tests.doctor.examined import copied, recipe

SMI = """
0, GPU-5a1c7f02-0000-4000-8000-000000000000, NVIDIA H100 80GB HBM3, 81559, 558, 4, 580.65.06, 9.0
1, GPU-8932f937-0000-4000-8000-000000000001, NVIDIA H100 80GB HBM3, 81559, 558, 40960, 580.65.06, 9.0
2, GPU-c0ffee00-0000-4000-8000-000000000002, NVIDIA T4, 15360, 450, 4, 580.65.06, 7.5
"""


def test_gpus_must_exist_and_be_free(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = parse_gpus(SMI)
    assert judge_gpus((0,), found).message == "1 GPUs, free: NVIDIA H100 80GB HBM3, 79.1 GiB"
    busy = judge_gpus((0, 1), found)
    assert busy.message == "GPU 1 (NVIDIA H100 80GB HBM3): another program uses 40.0 of 79.1 GiB"
    assert "nvidia-smi" in busy.advice
    assert judge_gpus((0, 7), found).verdict is Verdict.FAILED
    unknown = parse_gpus("0, GPU-1, NVIDIA GH200, 97871, [N/A], [N/A], 580.1, [N/A]")
    assert judge_gpus((0,), unknown).verdict is Verdict.PASSED
    assert unknown[0].memory_gib == pytest.approx(95.6, abs=0.1)


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """An nvidia-smi that shows two H100, the second busy, and a T4."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'{SMI}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("visible", "verdict", "message"),
    [
        (None, Verdict.PASSED, "1 GPUs, free"),
        ("0", Verdict.PASSED, "1 GPUs, free"),
        ("1", Verdict.FAILED, "GPU 0 (NVIDIA H100 80GB HBM3): another program uses 40.0 of 79.1 GiB"),
        ("2,1", Verdict.FAILED, "GPU 0 (NVIDIA T4) has compute capability 7.5: bfloat16 and packed attention need 8.0"),
        ("GPU-8932f937-0000-4000-8000-000000000001", Verdict.FAILED, "another program uses 40.0"),
        ("GPU-5a1c7f02", Verdict.PASSED, "1 GPUs, free"),
        ("7", Verdict.FAILED, "CUDA_VISIBLE_DEVICES=7 shows 0"),
        ("MIG-5a1c7f02/1/0", Verdict.NOT_CHECKED, "parts of GPUs (MIG)"),
    ],
)
def test_only_the_visible_gpus_are_checked(visible, verdict, message, nvidia_smi, monkeypatch):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    outcome = gpus(Case(recipe("single-gpu")))
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome


def test_the_memory_is_that_of_the_visible_gpu(nvidia_smi, monkeypatch):
    case = Case(recipe("single-gpu"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert role_memory(case).verdict is Verdict.PASSED
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert [gpu.name for gpu in usable_gpus()] == ["NVIDIA T4"]
    assert role_memory(case).verdict is Verdict.FAILED


def test_a_study_must_fit_without_the_learner_that_it_does_not_start(tiny, tmp_path, nvidia_smi):
    placed = [f"resources.{role}=1" for role in ("teacher", "rollout", "learner")]
    config = copied(tiny, tmp_path, [*placed, 'rollout.engine="vllm"', f"learner.micro_batch_tokens={2**34}"])
    assert role_memory(Case(config)).message.startswith("learner rank 0 needs")
    assert role_memory(Case(config, placed=("teacher", "rollout"))).verdict is Verdict.PASSED
    require(config, study=("c0", "eval+"), placed=("teacher", "rollout"))
    rollout = config.rollout.model_copy(update={"gpu_memory_utilization": 0.01})
    crowded, goal = config.model_copy(update={"rollout": rollout}), Goal(None, 1, 2**20, 60.0)
    with pytest.raises(ConfigError, match="rollout 0 needs"):
        collect(crowded, tmp_path / "study", goal, chosen="eval", recorded=None)
    require(crowded, study=("c0", "eval+"), placed=("teacher",))


def test_the_driver_must_run_the_cuda_of_torch():
    assert judge_driver("2.13.0+cu130", "13.0", "580.65.06").verdict is Verdict.PASSED
    old = judge_driver("2.13.0+cu130", "13.0", "570.86.10")
    assert (old.verdict, old.advice) == (Verdict.FAILED, "install a driver of the 580 series or newer")
    assert "make setup-gpu" in judge_driver("2.13.0+cpu", None, "580.65.06").advice


def test_too_few_gpus_are_one_fault_also_for_the_checks_that_load_models(tiny, tmp_path, monkeypatch):
    placed = ["resources.teacher=2", "resources.rollout=4", "resources.learner=2"]
    config = copied(tiny, tmp_path, placed)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    outcomes = {result.name: result.outcome for result in examine(Case(config), Level.FULL)}
    assert outcomes["GPUs"].verdict is Verdict.FAILED
    for check in CHECKS:
        if check.level is Level.FULL:
            assert outcomes[check.name].message == "needs the check 'GPUs' to pass"


@pytest.mark.parametrize("crowded", [False, True])
def test_roles_that_nothing_places_are_examined_where_they_would_run(tiny, tmp_path, nvidia_smi, monkeypatch, crowded):
    work = [f"learner.micro_batch_tokens={2**34}"] if crowded else []
    case = Case(copied(tiny, tmp_path, ['rollout.engine="vllm"', *work]))
    assert "no GPU wanted" in gpus(case).message, "torch is a build without CUDA"
    monkeypatch.setattr("torch.version.cuda", "13.0")
    assert gpus(case).message.startswith("1 GPUs, free")
    assert driver(case).verdict is Verdict.PASSED
    found = role_memory(case)
    assert found.message.startswith("without [resources] all roles share GPU 0: ")
    assert found.verdict is (Verdict.FAILED if crowded else Verdict.PASSED)
    assert found.advice == ("set [resources]; `calopd plan CONFIG` prints it" if crowded else "")
    on_cpu = copied(tiny, tmp_path / "cpu", [f"{role}.device=cpu" for role in ("teacher", "rollout", "learner")])
    assert "no GPU wanted" in role_memory(Case(on_cpu)).message


def test_more_ranks_are_advised_where_roles_have_counts_of_gpus():
    config = recipe("qwen3-30b-to-8b", "resources.learner=2", "resources.rollout=4", "resources.host_gpus=9")
    assert "resources.learner = 3 (3 ranks)" in role_memory(Case(config)).advice
