"""Settings of an experiment that reach its jobs, its costs and the paper's marks."""

import json
from typing import Any

from calopd.core.paper_results import BENCHMARK_SIZES, BENCHMARKS, paper_at_end
from calopd.experiments.costs import CostModel
from calopd.experiments.experiment_figures import experiment_figures
from calopd.experiments.job_execution import _replicas, _split_size
from tests.core.test_paper_results import settings_of
from tests.experiments.finished_runs import finish_run
from tests.experiments.test_experiment_plan import planned, small, write
from tests.experiments.test_experiment_results import experiment, write_run, write_scores
from tests.services.processes import ROOT

BASELINES = "[evaluation]\nbenchmarks = ['math500']\n[arms.opd]\nset.method.name = 'opd'\n"

PAIRS = ("qwen3-4b-to-1.7b", "qwen3-30b-to-4b", "qwen3-30b-to-8b")


def recipe(folder, name, more):
    return write(folder, f'[recipes]\npair = "{ROOT / "configs" / name}.toml"\n{more}')


def test_a_study_has_the_settings_of_all_runs_and_its_own(tmp_path):
    study = "[studies.one]\nrecipe = 'demo'\nset.rollout.max_tokens = 20\n"
    common = "set.rollout.max_tokens = 33\nset.rollout.engine = 'torch'"
    (job,) = planned(small(tmp_path, study, common)).jobs
    assert (job.config.rollout.max_tokens, job.config.rollout.engine) == (20, "torch")


def test_a_gpu_may_be_written_in_capitals(tmp_path):
    costs = []
    for gpu in ("h100", "H100", "none-such"):
        plan = planned(recipe(tmp_path, "qwen3-4b-to-1.7b", f"{BASELINES}[set.resources]\ngpu = '{gpu}'"))
        costs.append(CostModel(plan.experiment).cost(plan.runs[0]))
    assert costs[0] is not None
    assert costs[1:] == [costs[0], None]


def test_a_teacher_that_is_split_is_evaluated_on_as_many_gpus(tmp_path):
    split = "[set.teacher]\nengine = 'vllm'\ntensor_parallel_size = 2"
    jobs: dict[str, Any] = {
        job.name: job for job in planned(recipe(tmp_path, "qwen3-30b-to-4b", BASELINES + split)).jobs
    }
    assert (_split_size(jobs["pair.teacher"]), _split_size(jobs["pair.student"])) == (2, 1)
    assert _replicas(jobs["pair.teacher"]) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert _replicas(jobs["pair.opd.s0"]) == [(gpu,) for gpu in range(8)]


def test_the_papers_accuracy_is_marked_in_a_sweep_with_its_settings_only(tmp_path):
    for n, marks in ((16, [("the paper, Cal-OPD, λ = 5", 0.531, 5.0)]), (4, [])):
        names = json.dumps([name.lower() for name in BENCHMARKS])
        evaluation = f"[evaluation]\nbenchmarks = {names}\nn = {n}\n"
        plan = experiment(tmp_path, recipe="qwen3-4b-to-1.7b", evaluation=evaluation, seeds="[0]")
        for run in ("pair.cal_opd.s0", "pair.cal_opd.relaxation-1.s0"):
            write_scores(plan, run, **{name: [1.0] * size for name, size in BENCHMARK_SIZES.items()})
            write_run(plan, run, retained=0.6)
        sweep = next(figure for figure in plan.experiment.figures if figure.kind == "sweep")
        accuracy, retained = experiment_figures(plan, sweep)
        assert [(mark.label, mark.y, mark.x) for mark in accuracy.marks] == marks
        assert [mark.y for mark in retained.marks] == [0.52]


def test_the_papers_values_at_the_end_are_those_of_the_pair():
    norms = [paper_at_end(settings_of(name, "method.name=opd"), "grad_norm") for name in PAIRS]
    assert norms == [35, 15, None]
    assert paper_at_end(settings_of("qwen3-30b-to-4b"), "retained_ratio") is None


def test_a_sweep_has_a_line_for_each_value_of_the_other_keys(tmp_path):
    file = recipe(
        tmp_path,
        "demo",
        '[arms.grid]\ngrid."method.relaxation" = [1, 5]\ngrid."method.probes" = [["eval"], ["sol"]]\n'
        '[[figures]]\nkey = "f"\ntitle = "F"\narms = ["grid"]\nkind = "sweep"\nx = "method.relaxation"\n',
    )
    plan = planned(file)
    for number, job in enumerate(plan.runs):
        finish_run(job.config, retained=number / 10)
    (figure,) = experiment_figures(plan, plan.experiment.figures[0])
    assert {line.label: line.y for line in figure.lines} == {
        "grid, probes eval": [0, 0.2],
        "grid, probes sol": [0.1, 0.3],
    }
