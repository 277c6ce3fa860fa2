"""A plan as text: the jobs in their order, what each waits for, and what they cost."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calopd.core.paper_results import BENCHMARK_SIZES
from calopd.evaluation.benchmark_table import HUB
from calopd.experiments.costs import Cost, CostModel
from calopd.experiments.planned_runs import BaselineJob, ExperimentJob, ExperimentPlan, RunJob


def print_experiment(console: Console, plan: ExperimentPlan, price: float | None = None) -> None:
    """Print the plan; nothing runs."""
    model = CostModel(plan.experiment)
    costs = {job.name: model.cost(job) for job in plan.jobs}
    runs, others = len(plan.runs), len(plan.jobs) - len(plan.runs)
    title = Text(f"{plan.experiment.title}: {runs} runs, {others} other jobs")
    table = Table(title=title, title_justify="left", box=None)
    for name in ("", "job", "does", "hours", "GPU hours", "waits for"):
        right = name in ("", "hours", "GPU hours")
        table.add_column(name, justify="right" if right else "left", no_wrap=right or name == "does", overflow="fold")
    numbers = {job.name: str(number) for number, job in enumerate(plan.jobs, 1)}
    for job in plan.jobs:
        cost = costs[job.name]
        hours = "–" if cost is None else f"{cost.hours:.1f}" if cost.gpus else f"{cost.hours:.2f}"
        gpu_hours = "–" if cost is None or not cost.gpus else f"{cost.gpu_hours:,.0f}"
        waits = ", ".join(numbers[name] for name in job.needs)
        table.add_row(numbers[job.name], job.name, _task(job), hours, gpu_hours, waits)
    console.print(table)
    total = _total([cost for cost in costs.values() if cost], len(plan.jobs), price)
    for line in (total, *_facts(plan)):
        console.print(line, highlight=False, markup=False)


def _task(job: ExperimentJob) -> str:
    if isinstance(job, RunJob):
        learner = job.config.learner
        groups = f", {learner.samples} per problem" if learner.samples > 1 else ""
        lora = f", LoRA {learner.lora_rank}" if learner.lora_rank else ""
        return f"{job.config.run.steps} steps x {learner.trajectories}{groups}{lora}"
    return "evaluation" if isinstance(job, BaselineJob) else "study"


def _total(costs: list[Cost], jobs: int, price: float | None) -> str:
    if not costs:
        return "No estimate: set resources.gpu and the GPUs of all roles in the recipe, or [estimate] in the file."
    hours, gpu_hours = sum(cost.hours for cost in costs), sum(cost.gpu_hours for cost in costs)
    without = f"; {jobs - len(costs)} jobs have no estimate" if len(costs) < jobs else ""
    text = f"Total: {hours:,.1f} hours on one host{without}"
    if gpu_hours:
        training = sum(cost.training_hours * cost.gpus for cost in costs)
        parts = f" ({training:,.0f} of training, the rest of evaluation)" if training < gpu_hours else ""
        text += f", {gpu_hours:,.0f} GPU hours{parts}"
    return text + (f", {gpu_hours * price:,.0f} at {price:g} per GPU hour." if price else ".")


def _facts(plan: ExperimentPlan) -> list[str]:
    experiment, facts = plan.experiment, []
    benchmarks = experiment.evaluation.benchmarks
    if benchmarks and experiment.arms:
        named = [f"{HUB[name][0]} ({BENCHMARK_SIZES[HUB[name][0]]})" if name in HUB else name for name in benchmarks]
        facts.append(f"Evaluation: Avg@{experiment.evaluation.n} on {', '.join(named)}.")
    if experiment.estimate is not None:
        facts.append(f"Estimated from measured times: {experiment.estimate.source or 'see [estimate] in the file'}.")
    elif any(job.config.resources.gpu for job in plan.jobs):
        facts.append("Predicted by the model of `calopd plan`, not measured; docs/performance.md has its assumptions.")
    facts.append(f"Everything is written to {experiment.dir}; runs with the same settings there are not repeated.")
    return facts
