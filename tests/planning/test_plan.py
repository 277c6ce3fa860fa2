"""The plan of a step: lengths, queues, preemption, and the choice of a split."""

import statistics
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from calopd.config import load_config
from calopd.core.errors import ConfigError
from calopd.planning.decode_batch import RolloutReplica
from calopd.planning.gpus import GPUS
from calopd.planning.lengths import PAPER_QUANTILES, draw_lengths, lengths_of_run
from calopd.planning.plan_tables import Plan, print_assumptions
from calopd.planning.splits import plan_splits, with_split
from calopd.planning.step_simulation import Servers, StepModel, sample_times
from calopd.rundir.files import read_lines, write_lines, write_text
from calopd.rundir.layout import RunDir
from tests.services.processes import ROOT

CONFIG = ROOT / "configs" / "qwen3-4b-to-1.7b.toml"


def replica(capacity: int = 10**9, most: int = 10**9) -> RolloutReplica:
    """One second per token, whatever runs beside it."""
    return RolloutReplica(
        max_sequences=most,
        capacity_tokens=capacity,
        prompt_tokens=10,
        token_seconds=lambda running, cached: 1.0,
        prefill_seconds=lambda tokens: 0.0,
    )


def test_lengths_are_those_of_the_paper() -> None:
    lengths = draw_lengths(4_096, 0)
    assert statistics.mean(lengths) == pytest.approx(9_270, rel=0.01)
    assert statistics.median(lengths) == pytest.approx(7_758, rel=0.01)
    assert max(lengths) == 16_384
    assert max(draw_lengths(64, 0, limit=1_000)) == 1_000
    assert draw_lengths(64, 1) != draw_lengths(64, 2)
    assert statistics.mean(draw_lengths(64, 3)) == pytest.approx(9_270, rel=0.03), "a small step has the mean too"


def test_responses_are_complete_at_their_length() -> None:
    assert sample_times(replica(), (5, 300, 40)) == ([5.0, 300.0, 40.0], 0)


def test_a_full_engine_lets_the_next_response_wait() -> None:
    finished, _ = sample_times(replica(most=1), (5, 7))
    assert finished == [5.0, 12.0]


def test_a_full_cache_preempts_and_loses_no_token() -> None:
    finished, preempted = sample_times(replica(capacity=150), (100, 100))
    assert preempted > 0
    assert finished[0] == 100.0
    assert 100.0 < finished[1] <= 200.0


def test_first_come_first_served() -> None:
    arrivals = [(0.0, 2.0), (1.0, 2.0), (1.5, 1.0)]
    one = Servers(1)
    assert one.serve(arrivals) == [2.0, 4.0, 5.0]
    assert one.busy == 5.0
    assert one.serve([(0.0, 1.0)]) == [6.0], "after the work that came before"
    assert Servers(2).serve(arrivals) == [2.0, 3.0, 3.0]


LENGTHS = draw_lengths(32, 0, limit=400)


def step_model(per_second: float = 40.0) -> StepModel:
    """Two rollouts that sample a token per second and sequence; teacher and rank take `per_second` tokens."""
    return StepModel(
        replica=replica(),
        rollouts=2,
        teachers=1,
        ranks=1,
        scoring=lambda tokens: tokens / per_second,
        learning=lambda tokens: tokens / per_second,
        optimizer=1.0,
        publish=1.0,
        load=1.0,
    )


def test_roles_overlap_in_a_strict_step_and_do_not_in_phases() -> None:
    model = step_model()
    strict, phases = model.strict(LENGTHS), model.phases(LENGTHS)
    assert strict.busiest < strict.step < phases
    assert phases == pytest.approx(max(LENGTHS) + strict.teacher + strict.learner + 2.0)
    assert model.stale(LENGTHS).step <= strict.step


def test_a_stale_step_lasts_as_long_as_the_busiest_role_and_half_the_way_of_a_policy() -> None:
    learner_bound = step_model(per_second=10.0)
    stale = learner_bound.stale(LENGTHS)
    # Sampled, scored and learned from, then published: two steps later a policy is there that has learned from it.
    assert stale.step == pytest.approx(stale.learner + learner_bound.publish, rel=0.01)
    rollout_bound = step_model(per_second=10_000.0)
    stale = rollout_bound.stale(LENGTHS)
    assert stale.step == pytest.approx(max(LENGTHS) + rollout_bound.load, rel=0.01), "running responses are completed"
    assert stale.step > stale.busiest


def test_a_method_that_sees_the_whole_step_first_learns_after_the_last_score() -> None:
    model = step_model(per_second=100.0)
    strict = model.strict(LENGTHS)
    waits = replace(model, looking=lambda tokens: 0.0).strict(LENGTHS)
    looks = replace(model, looking=lambda tokens: tokens / 100).strict(LENGTHS)
    assert strict.step < waits.step < looks.step
    assert waits.step > max(LENGTHS) + strict.learner + 2.0
    assert waits.learner == strict.learner
    assert looks.learner - waits.learner == pytest.approx(strict.learner - 1.0), "one more pass"


@pytest.mark.parametrize(
    ("settings", "longer"),
    [
        (("learner.recompute_activations=false",), "less learner"),
        (("learner.compile=true",), "less learner"),
        (("learner.lora_rank=64",), "less learner"),
        (("method.name=exopd", "learner.lora_rank=0"), "more learner"),
        (('method.probes=["sol"]',), "more teacher"),
    ],
)
def test_settings_that_change_the_work_of_a_role_change_its_seconds(settings: tuple[str, ...], longer: str) -> None:
    before, after = (
        next(split.strict for split in plan_splits(load_config(CONFIG, given), GPUS["h100"], 3))
        for given in ((), settings)
    )
    way, role = longer.split()
    least, most = (before, after) if way == "more" else (after, before)
    assert getattr(most, role) > 1.1 * getattr(least, role)
    other = "teacher" if role == "learner" else "learner"
    if "exopd" not in settings[0]:
        assert getattr(after, other) == pytest.approx(getattr(before, other))


def test_gpus_that_one_of_each_role_does_not_fit_on_are_refused() -> None:
    config = load_config(CONFIG, ["rollout.tensor_parallel_size=2"])
    with pytest.raises(ConfigError, match=r"3 GPUs cannot be split: .* need 4 \(1 \+ 2 \+ 1"):
        plan_splits(config, GPUS["h100"], 3)


def test_a_plan_for_another_gpu_has_the_limits_of_that_gpu() -> None:
    """The recipe is written for GPUs of 80 GB, whose rollouts run more sequences at once."""
    config = load_config(CONFIG)
    h100 = plan_splits(config, GPUS["h100"], 4)[0].strict.rollout
    slower = replace(GPUS["h100"], name="4090", memory_gib=GPUS["4090"].memory_gib)
    assert plan_splits(config, slower, 4)[0].strict.rollout > 1.2 * h100


def test_the_best_split_fits_and_is_a_configuration() -> None:
    config = load_config(CONFIG)
    splits = plan_splits(config, GPUS["h100"], 8)
    assert len(splits) == 21
    best = splits[0]
    assert best.fits_all
    assert best.strict.step == min(split.strict.step for split in splits if split.fits_all)
    section = tomllib.loads(best.toml("h100"))["resources"]
    chosen = with_split(config, "h100", best.teacher, best.rollout, best.learner)
    assert chosen.resources.model_dump(exclude_none=True) == section
    assert len(chosen.placement.rollouts) == best.rollout


def test_a_student_that_few_ranks_cannot_hold_gets_enough_of_them() -> None:
    """The advice for the splits that do not fit names no ranks beyond the GPUs of the host."""
    splits = plan_splits(load_config(ROOT / "configs" / "qwen3-30b-to-8b.toml"), GPUS["h100"], 8)
    assert splits[0].fits_all
    refused = [split for split in splits if split.learner == 1]
    assert refused
    assert not any(split.fits_all for split in refused)


def test_more_or_faster_gpus_never_make_a_step_longer() -> None:
    config = load_config(CONFIG)
    four, eight = (plan_splits(config, GPUS["h100"], count)[0].strict.step for count in (4, 8))
    assert eight < four
    assert plan_splits(config, GPUS["h20"], 8)[0].strict.step > eight


def recorded(folder: Path, **figures: float) -> RunDir:
    run = RunDir(folder)
    write_text(run.config, load_config(CONFIG).to_toml())
    rows = [{f"response_length_{key}": value + step for key, value in figures.items()} for step in (-100, 100)]
    write_lines(run.metrics, [{**row, "truncated_share": 0.0} for row in rows])
    return run


def test_a_plan_takes_the_lengths_of_a_run(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", p50=1_000, p95=3_000, mean=1_800)
    responses = lengths_of_run(run)
    lengths = draw_lengths(4_096, 0, quantiles=responses.quantiles)
    assert statistics.median(lengths) == pytest.approx(1_000, rel=0.01)
    assert sorted(lengths)[int(0.95 * 4_096)] == pytest.approx(3_000, rel=0.02)
    assert statistics.mean(lengths) == pytest.approx(1_800, rel=0.01)
    assert max(lengths) > 16_000, "the limit of the run"
    config = load_config(CONFIG)
    splits = plan_splits(config, GPUS["h100"], 4, responses=responses)
    assert splits[0].strict.teacher < plan_splits(config, GPUS["h100"], 4)[0].strict.teacher / 2
    console = Console(width=150, record=True)
    print_assumptions(console, Plan(config=config, gpu=GPUS["h100"], splits=splits, responses=responses))
    shown = console.export_text()
    assert "median 1,000 tokens, mean 1,800, 0% cut at 16,384" in shown
    assert f"2 steps of {run}" in shown
    assert "the paper's, for" not in shown


def test_lengths_of_a_run_that_cuts_many_responses(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", p50=7_758, p95=16_284, mean=9_270)
    write_lines(run.metrics, [{**row, "truncated_share": 0.213} for row in read_lines(run.metrics)])
    found, papers = (np.array(quantiles) for quantiles in (lengths_of_run(run).quantiles, PAPER_QUANTILES))
    assert found == pytest.approx(papers, rel=0.1), "what the paper's own lengths would record"


def test_lengths_of_an_emulated_run_are_refused(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", p50=1_000, p95=3_000, mean=1_800)
    write_text(run.config, run.config.read_text().replace('engine = "torch"', 'engine = "emulated"'))
    with pytest.raises(ConfigError, match="drawn, not sampled"):
        lengths_of_run(run)
