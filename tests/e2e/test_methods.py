"""Each method through the real services, by its name alone, with what is peculiar to it."""

import json

import pytest
import torch
from safetensors.torch import load_file

from calopd.config import Config, load_config
from calopd.rundir.files import read_lines
from tests.e2e.runs import check_finished, finish, settings_of, start
from tests.services.processes import ROOT

pytestmark = pytest.mark.slow
DEMO = ROOT / "examples" / "demo"


def train(tiny, name: str, *settings: str, steps: int = 1) -> tuple[Config, list[dict]]:
    """A run with this method; its configuration and its lines."""
    file = tiny.write_config(f"method-{name}", steps=steps)
    wanted = [f"method.name={name}", "evaluation.problems=0", *settings]
    finish(start(str(file), *settings_of(wanted)))
    config = load_config(file, wanted, {})
    check_finished(config)
    return config, read_lines(config.run_dir.metrics)


def test_exopd_extrapolates_from_the_frozen_student(tiny):
    """At the first step the student is the reference, so that A = 1.25 A_OPD; at the second it is not.

    On two ranks, each with its shard of the frozen copy.
    """
    _, (first, second) = train(tiny, "exopd", "learner.lora_rank=0", "learner.ranks=2", steps=2)
    assert first["retained_ratio"] == pytest.approx(1.25, rel=1e-4)
    assert abs(second["retained_ratio"] - 1.25) > 1e-4
    assert first["clamped_share"] == 0


def test_exopd_with_lora_switches_the_adapter_off_and_publishes_it_merged(tiny):
    """The reference is the initial student still at the second step, and the rollout samples from the merged policy."""
    lora = ["learner.lora_rank=4", "learner.lora_alpha=8", "learner.learning_rate=1e-2", "learner.ranks=2"]
    config, (first, second) = train(tiny, "exopd", "run.name=exopd-lora", *lora, steps=2)
    assert first["retained_ratio"] == pytest.approx(1.25, rel=1e-4)
    assert abs(second["retained_ratio"] - 1.25) > 1e-4
    assert second["logprob_mismatch"] < 1e-4, "the sampler has another student than the learner"
    initial, final = (load_file(path / "model.safetensors") for path in (tiny.student, config.run_dir.model))
    changed = {name for name in final if not torch.equal(initial[name], final[name])}
    assert final.keys() == initial.keys()
    assert changed == {name for name in final if name.endswith("_proj.weight")}


def test_eopd_adds_forward_kl_where_the_teacher_is_undecided(tiny):
    _, lines = train(tiny, "eopd", "method.overlap_share=0.5", "method.entropy_threshold=3.0")
    for line in lines:
        assert 0 < line["gate_open_share"] < 1
        assert line["forward_kl"] > 0
        assert line["retained_ratio"] == 1.0
        assert 0 < line["top16_mass_overlap"] < 1


def test_uni_opd_balances_right_and_wrong(tiny):
    """With the demo's models, whose answers are right now and then: as many right as wrong ones stay."""
    demo = [f'student.path="{DEMO / "student"}"', f'teacher.path="{DEMO / "teacher"}"']
    demo += [f'data.train="{DEMO / "train.jsonl"}"', f'data.heldout="{DEMO / "heldout.jsonl"}"']
    limits = ["learner.trajectories=32", "learner.samples=8", "rollout.max_tokens=96", "rollout.max_in_flight=32"]
    _, (line,) = train(tiny, "uni_opd", *demo, *limits, "learner.ranks=2")
    right = round(line["accuracy"] * 32)
    assert 0 < right < 32
    assert line["trajectories_kept"] == 2 * min(right, 32 - right)
    assert line["tokens_kept"] < line["tokens"]
    assert line["clamped_share"] == 0


def test_privileged_opd_learns_from_the_solution_and_is_measured_without(tiny, undisturbed):
    """The same rollouts as the Cal-OPD run: the overlap is with the unprivileged teacher and must be the same."""
    config, (first,) = train(tiny, "privileged_opd")
    assert "sol+" in read_lines(config.run_dir.trajectories)[0]["teacher_logprobs"]
    other = read_lines(undisturbed.run_dir.metrics)[0]
    assert first["tokens"] == other["tokens"]
    assert first["top16_mass_overlap"] == pytest.approx(other["top16_mass_overlap"], rel=1e-4)
    assert first["loss"] != pytest.approx(other["loss"], rel=1e-2)
    assert first["region_width"] is None


def test_sol_probes_need_solutions_and_say_whose_is_missing(tiny, tmp_path):
    config, _ = train(tiny, "cal_opd", 'method.probes=["sol"]', "run.name=sol-probes")
    assert "deviation_sol+" in read_lines(config.run_dir.metrics)[0]
    bare = tmp_path / "bare.jsonl"
    rows = [json.loads(line) for line in tiny.train.read_text().splitlines()]
    bare.write_text("".join(json.dumps({**row, "solution": ""}) + "\n" for row in rows))
    file = tiny.write_config("no-solutions")
    for setting in ("method.name=privileged_opd", 'method.probes=["sol"]'):
        wanted = [setting, f'data.train="{bare}"']
        out = finish(start(str(file), *settings_of(wanted)), code=78)
        assert out.startswith("error: problem p0-0 has no solution, which the context 'sol"), out


def test_advantage_sync_keeps_what_the_recorded_run_kept(tiny, undisturbed):
    recorded = read_lines(undisturbed.run_dir.metrics)
    _, lines = train(tiny, "advantage_sync", f'method.recorded_run="{undisturbed.run_dir}"', steps=2)
    for line, model in zip(lines, recorded, strict=False):
        assert line["retained_ratio"] == pytest.approx(model["retained_ratio"], rel=1e-5)
    assert lines[0]["zero_ratio"] == 0


def test_token_sync_zeroes_as_many_as_the_recorded_run(tiny, undisturbed):
    recorded = read_lines(undisturbed.run_dir.metrics)
    _, lines = train(tiny, "token_sync", f'method.recorded_run="{undisturbed.run_dir}"', "learner.ranks=2", steps=2)
    for line, model in zip(lines, recorded, strict=False):
        assert line["zero_ratio"] * line["tokens"] == pytest.approx(round(model["zero_ratio"] * line["tokens"]))
        assert line["tokens_kept"] == line["tokens"]


def test_a_recorded_run_that_is_too_short_is_refused_before_anything_starts(tiny, undisturbed):
    file = tiny.write_config("too-long", steps=9)
    wanted = ["method.name=token_sync", f'method.recorded_run="{undisturbed.run_dir}"']
    out = finish(start(str(file), *settings_of(wanted)), code=78)
    assert "step 9 is missing" in out


def test_tsd_filter_drops_tokens_from_the_denominator(tiny):
    _, lines = train(tiny, "tsd_filter", "method.deviation_threshold=0.3")
    for line in lines:
        assert 0 < line["tokens_kept"] < line["tokens"]
        assert 0 < line["retained_ratio"] < 1
        assert line["zero_ratio"] == pytest.approx(1 - line["tokens_kept"] / line["tokens"], abs=0.01)


def test_a_share_of_the_tokens_can_be_selected(tiny):
    settings = ["method.selection=top-gap", "method.selection_ratio=0.5", "run.name=select"]
    _, (first,) = train(tiny, "opd", *settings, "learner.ranks=2")
    assert first["tokens_kept"] == pytest.approx(first["tokens"] / 2, abs=16)


TENTH = """
from dataclasses import dataclass

from calopd.core.methods import Method, ProbeSettings, cal_opd

@dataclass(frozen=True, kw_only=True)
class Settings(ProbeSettings):
    factor: float = 1.0

def advantage(tokens, settings):
    return settings.factor * cal_opd.advantage(tokens, settings)

METHOD = Method(name="part_cal", settings=Settings, advantage=advantage)
"""


def test_a_tenth_method_is_one_file(tiny, tmp_path, undisturbed):
    file = tmp_path / "part_cal.py"
    file.write_text(TENTH)
    try:
        _, (first,) = train(tiny, "part_cal", f'method.file="{file}"', "method.factor=0.5")
    finally:
        from calopd.core.methods import METHODS

        METHODS.pop("part_cal", None)
    other = read_lines(undisturbed.run_dir.metrics)[0]
    assert first["retained_ratio"] == pytest.approx(other["retained_ratio"] / 2, rel=1e-4)
