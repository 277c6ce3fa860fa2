"""Whether roles fit their GPUs, and what is advised if they do not."""

import re

import pytest

from calopd.config.load import load_config
from calopd.core.errors import ConfigError
from calopd.planning import role_fits
from calopd.planning.gpus import GPUS, usable_gib
from calopd.planning.storage import checkpoint_bytes, policies_bytes, policy_bytes

BASE = """
[data]
train = "train.jsonl"
[student]
path = "Qwen/Qwen3-8B"
[teacher]
path = "Qwen/Qwen3-30B-A3B-Thinking-2507"
batch_tokens = 32_768
[learner]
micro_batch_tokens = 20_480
[resources]
gpu = "h100"
teacher = 2
rollout = 4
learner = 2
"""
SMALL = ["student.path=Qwen/Qwen3-1.7B", "teacher.path=Qwen/Qwen3-4B-Thinking-2507"]
ONE_GPU = ["resources.teacher=[0]", "resources.rollout=[0]", "resources.learner=[0]", "resources.gpu=a100"]


@pytest.fixture
def config(tmp_path):
    """The pair that needs most, on 8 GPUs, with overrides."""
    file = tmp_path / "run.toml"
    file.write_text(BASE)
    return lambda *overrides: load_config(file, overrides, environ={})


def fit_of(role, settings):
    return next(fit for fit in role_fits(settings) if fit.role == role)


def test_the_8b_student_does_not_fit_two_h100_and_the_advice_does(config):
    fit = fit_of("learner", config())
    assert not fit.fits
    assert re.match(r"learner rank 0: 7\d\.\d GiB of 75\.\d usable: use ", str(fit))
    advised = re.findall(r"([a-z]+\.[a-z_]+ = \w+)", fit.advice)
    assert advised
    for change in advised:
        assert fit_of("learner", config(change.replace(" ", ""))).fits, change


def test_every_process_is_checked_and_its_terms_add_up(config):
    fits = role_fits(config("resources.learner=4"))
    assert [fit.role for fit in fits] == ["teacher"] * 2 + ["rollout"] * 4 + ["learner"] * 4
    for fit in fits:
        assert sum(fit.breakdown.values()) == pytest.approx(fit.needed_gib)
        assert fit.fits == (not fit.advice)


def test_a_smaller_micro_batch_is_advised_if_it_suffices(config):
    fit = fit_of("learner", config("resources.learner=4", "learner.micro_batch_tokens=200_000"))
    assert not fit.fits
    assert "learner.micro_batch_tokens = " in fit.advice


def test_a_teacher_that_is_too_large_is_split(config):
    fit = fit_of("teacher", config("resources.gpu=l40s"))
    assert not fit.fits
    assert "teacher.tensor_parallel_size = 2" in fit.advice


def test_roles_on_one_gpu_are_added_up(config):
    assert all(fit.fits for fit in role_fits(config(*SMALL, "resources.gpu=a100")))
    crowded = role_fits(config(*SMALL, *ONE_GPU))
    assert not any(fit.fits for fit in crowded)  # vLLM alone takes 85 %
    shared = ["rollout.gpu_memory_utilization=0.4", "learner.lora_rank=64"]
    assert all(fit.fits for fit in role_fits(config(*SMALL, *ONE_GPU, *shared)))
    assert fit_of("learner", config(*SMALL, *ONE_GPU, *shared)).spare < 0.5


def test_what_is_not_known_is_not_checked(config, tmp_path):
    fits = role_fits(config("resources.gpu="))
    assert {fit.fits for fit in fits} == {None}
    assert "resources.gpu" in str(fits[0])
    fits = role_fits(config(f"student.path={tmp_path}"))
    assert {fit.role: fit.fits for fit in fits} == {"teacher": True, "rollout": None, "learner": None}
    assert "config.json" in fit_of("learner", config(f"student.path={tmp_path}")).advice


def test_the_memory_that_is_found_counts_before_the_one_that_is_stated(config):
    settings = config()
    assert all(fit.fits for fit in role_fits(settings, gpu_gib=GPUS["h200"].memory_gib))


def test_an_unknown_gpu_is_refused_with_the_known_ones(config):
    with pytest.raises(ConfigError, match="h200"):
        role_fits(config("resources.gpu=h9000"))


def test_a_gpu_keeps_room_for_contexts_and_nccl():
    assert usable_gib(79.1, 3, communicates=True) < usable_gib(79.1, 1) < 79.1


def test_policies_and_checkpoints_have_the_bytes_of_their_weights(config):
    settings = config()
    parameters = 8_190_735_360
    assert policy_bytes(settings) == 2 * parameters
    assert policies_bytes(settings) == 4 * 2 * parameters
    assert policies_bytes(config("learner.snapshot_every=1")) == 3 * 2 * parameters
    assert checkpoint_bytes(settings) == 12 * parameters
    assert checkpoint_bytes(config("learner.lora_rank=64")) < 3 * parameters
