"""The paper's numbers are shown beside runs with its settings, and beside no others."""

import copy

import numpy as np
import pytest

from calopd.config import load_config
from calopd.core.paper_results import (
    BENCHMARK_SIZES,
    CAL_OPD,
    LARGE,
    MIDDLE,
    SMALL,
    paper_accuracy,
    paper_arm,
    paper_at_end,
    paper_minutes,
)
from calopd.experiments.experiment_file import load_experiment
from calopd.experiments.planned_runs import plan_experiment
from tests.services.processes import ROOT

PAPERS_METHODS = ("opd", "exopd", "eopd", "uni_opd", "privileged_opd")


def settings_of(recipe: str, *given: str) -> dict:
    return load_config(ROOT / "configs" / f"{recipe}.toml", given, environ={}).model_dump(mode="json")


def test_the_recipes_are_the_papers():
    assert paper_arm(settings_of("qwen3-4b-to-1.7b")) == (SMALL, CAL_OPD)
    assert paper_arm(settings_of("qwen3-30b-to-4b")) == (MIDDLE, CAL_OPD)
    assert paper_arm(settings_of("qwen3-30b-to-8b")) == (LARGE, CAL_OPD)
    assert paper_arm(settings_of("qwen3-4b-to-1.7b", 'method.probes=["sol"]')) == (SMALL, "cal_opd/sol/5")
    assert paper_arm(settings_of("single-gpu")) is None
    for name in PAPERS_METHODS:
        assert paper_arm(settings_of("qwen3-4b-to-1.7b", f"method.name={name}")) == (SMALL, name)
    assert paper_accuracy(SMALL, "tsd_filter/0.05") == pytest.approx({"mean": 0.511})


@pytest.mark.parametrize("name", ["controls", "dynamics", "lambda", "main-table", "probes"])
def test_every_run_of_the_papers_experiments_is_an_arm_of_it(name):
    file = ROOT / "configs" / "paper" / f"{name}.toml"
    runs = plan_experiment(file, load_experiment(file), environ={}).runs
    settings = {job.name: job.config.model_dump(mode="json") for job in runs}
    for job in runs:
        followed = settings.get(job.needs[0], {}) if job.needs else {}
        found = paper_arm({**settings[job.name], "followed": followed})
        assert found is not None, job.name
        assert found[0] == (MIDDLE if job.pair == "middle" else SMALL)


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("cal_opd", change)
        for change in (
            "run.steps=50", "run.max_staleness=1", 'data.train="data/dapo-math-17k.jsonl"',
            "data.max_prompt_tokens=1024", "data.max_context_tokens=4096",
            'teacher.path="Qwen/Qwen3-8B"', "rollout.max_tokens=8192", "rollout.temperature=0.7", "rollout.top_p=0.9",
            "learner.trajectories=128", "learner.samples=2", "learner.lora_rank=8", "learner.learning_rate=1e-5",
            "learner.warmup_steps=5", "learner.betas=[0.9, 0.95]", "learner.weight_decay=0.1",
            "learner.gradient_clip=0.5", "method.clamp=5.0", 'method.clamp="none"',
            'method.loss_agg_mode="token-mean"', 'method.placement="before"', 'method.student_logprobs="rollout"',
            "method.selection_ratio=0.5", 'method.contexts={"eval+" = "Well done."}',
        )
    ]
    + [
        ("opd", 'method.loss_agg_mode="token-mean"'),
        ("exopd", "method.extrapolation=1.5"), ("exopd", "method.clamp=10.0"), ("exopd", "learner.lora_rank=0"),
        ("exopd", "learner.lora_alpha=64"), ("exopd", 'method.loss_agg_mode="seq-mean-token-mean"'),
        ("eopd", "method.entropy_threshold=0.5"), ("eopd", "method.forward_kl_weight=0.5"),
        ("eopd", "method.forward_kl_top_k=8"),
        ("uni_opd", "learner.samples=8"), ("uni_opd", "method.margin_delta=0.2"),
        ("uni_opd", 'method.margin_mode="shift"'), ("tsd_filter", 'method.probes=["sol"]'),
    ],
)  # fmt: skip
def test_one_other_setting_is_not_the_papers(method, change):
    assert paper_arm(settings_of("qwen3-4b-to-1.7b", f"method.name={method}")) is not None
    assert paper_arm(settings_of("qwen3-4b-to-1.7b", f"method.name={method}", change)) is None


def test_the_training_set_may_be_in_another_folder():
    assert paper_arm(settings_of("qwen3-4b-to-1.7b", 'data.train="/mnt/data/dapo-math-solved.jsonl"')) is not None


@pytest.mark.parametrize(("count", "same"), [(15_560, True), (15_400, True), (17_255, False), (60, False)])
def test_the_training_set_has_the_papers_size(count, same):
    settings = settings_of("qwen3-4b-to-1.7b")
    settings["data"]["problems"] = count
    assert (paper_arm(settings) is not None) == same


@pytest.mark.parametrize("name", ["advantage_sync", "token_sync"])
def test_a_control_of_the_paper_follows_its_cal_opd(name):
    control = settings_of("qwen3-4b-to-1.7b", f"method.name={name}", "method.recorded_run=runs/recorded")
    assert paper_arm(control) is None, "nobody knows what it follows"
    for followed, same in (
        (settings_of("qwen3-4b-to-1.7b"), True),
        (settings_of("qwen3-4b-to-1.7b", "method.relaxation=80"), False),
        (settings_of("qwen3-30b-to-4b"), False),
    ):
        assert (paper_arm({**control, "followed": followed}) == (SMALL, name)) == same


def test_the_overlaps_of_the_paper_are_of_16_tokens():
    assert paper_at_end(settings_of("qwen3-4b-to-1.7b"), "top16_token_overlap") == 0.693
    other = settings_of("qwen3-4b-to-1.7b", "method.overlap_top_k=4")
    assert paper_at_end(other, "top16_token_overlap") is None
    assert paper_at_end(other, "retained_ratio") == 0.52


def test_an_emulated_run_is_not_the_papers():
    config = copy.deepcopy(settings_of("qwen3-4b-to-1.7b"))
    for role in ("teacher", "rollout", "learner"):
        config[role]["engine"] = "emulated"
    assert paper_arm(config) is None
    assert paper_minutes(config) is None


def test_the_minutes_need_the_papers_settings_but_for_the_number_of_steps():
    assert paper_minutes(settings_of("qwen3-4b-to-1.7b", "run.steps=10")) == 14.90
    assert paper_minutes(settings_of("qwen3-4b-to-1.7b", "method.name=opd")) == 18.80
    assert paper_minutes(settings_of("qwen3-4b-to-1.7b", "method.name=eopd")) is None
    for change in (
        "learner.trajectories=128", "rollout.max_tokens=8192", "learner.lora_rank=8", "run.max_staleness=1",
        'method.probes=["sol"]', "learner.learning_rate=1e-5", 'data.train="data/dapo-math-17k.jsonl"',
    ):  # fmt: skip
        assert paper_minutes(settings_of("qwen3-4b-to-1.7b", change)) is None, change
    assert paper_minutes(settings_of("demo")) is None


def test_the_efficiency_experiment_has_the_papers_minutes():
    file = ROOT / "configs" / "paper" / "efficiency.toml"
    runs = plan_experiment(file, load_experiment(file), environ={}).runs
    found = {job.name: paper_minutes(job.config.model_dump(mode="json")) for job in runs}
    assert sorted(found.values()) == [14.90, 18.80, 31.26, 35.19, 48.76, 50.05], found


def test_the_papers_means_are_those_of_its_benchmarks():
    """A slip of the pen in the table would show here; the paper rounds each number."""
    for pair in (SMALL, MIDDLE):
        for arm in ("student", "teacher", *PAPERS_METHODS, CAL_OPD):
            values = paper_accuracy(pair, arm)
            mean = np.mean([values[name] for name in BENCHMARK_SIZES])
            assert mean == pytest.approx(values["mean"], abs=0.0011), (pair, arm)
