"""A plan as text: the splits, the best one as a section of a configuration, and the assumptions."""

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from calopd.config import Config
from calopd.planning.gpus import GPU
from calopd.planning.rates import ASSUMED, Efficiency
from calopd.planning.splits import Split

PAPER_MINUTES = {
    ("Qwen3-1.7B", "Qwen3-4B-Thinking-2507"): {"cal_opd": 14.90, "opd": 18.80},
    ("Qwen3-4B", "Qwen3-30B-A3B-Thinking-2507"): {"cal_opd": 48.76, "opd": 31.26},
    ("Qwen3-8B", "Qwen3-30B-A3B-Thinking-2507"): {"cal_opd": 50.05, "opd": 35.19},
}
"""(student, teacher) -> method -> minutes of a step in the paper, on 8 H20."""


def paper_minutes(config: Config) -> float | None:
    """The paper's minutes per step of this pair and method on 8 H20; None if the paper has none."""
    pair = config.student.path.rpartition("/")[2], config.teacher.path.rpartition("/")[2]
    return PAPER_MINUTES.get(pair, {}).get(config.method.name)


def print_plan(console: Console, config: Config, gpu: GPU, splits: Sequence[Split], price: float | None) -> None:
    """Print the splits, the best first, and the best one as TOML."""
    count = sum((splits[0].teacher, splits[0].rollout, splits[0].learner))
    table = Table(title=f"{config.run.name}: a step on {count} x {gpu.name}, predicted", title_justify="left")
    for heading in ("teacher", "rollout", "learner"):
        table.add_column(heading, justify="right")
    for heading in ("minutes", "busy t / r / l", "stale 1", "phases", "fits"):
        table.add_column(heading, justify="right")
    for split in splits:
        strict = split.strict
        busy = " / ".join(f"{seconds / 60:.1f}" for seconds in (strict.teacher, strict.rollout, strict.learner))
        table.add_row(
            str(split.teacher), str(split.rollout), str(split.learner), f"{strict.step / 60:.2f}", busy,
            f"{split.stale.step / 60:.2f}", f"{split.phases / 60:.2f}", "yes" if split.fits_all else "no",
        )  # fmt: skip
    console.print(table)
    best = splits[0]
    if not best.fits_all:
        console.print("No split fits:", *(fit.advice for fit in best.fits if not fit.fits), sep="\n  ")
        return
    hours = best.strict.step * config.run.steps / 3600
    line = f"{config.run.steps} steps: {hours:.1f} hours, {hours * count:.0f} GPU hours"
    console.print(
        line + (f", {hours * count * price:,.0f} at {price:g} per GPU hour" if price else ""), highlight=False
    )
    if minutes := paper_minutes(config):
        console.print(f"The paper reports {minutes:.2f} minutes per step on 8 H20.", highlight=False)
    console.print(f"\n{best.toml(gpu.name)}\n", highlight=False, markup=False)
    console.print(assumptions(), highlight=False)


def assumptions(efficiency: Efficiency = ASSUMED) -> str:
    """The assumptions behind the figures, in one paragraph."""
    values = asdict(efficiency)
    return (
        f"Predicted, not measured. Assumed: sampling reaches {values['decode_bandwidth']:.0%} of the memory bandwidth "
        f"plus {values['decode_overhead_seconds'] * 1e3:g} ms per token, scoring {values['prefill']:.0%} and learning "
        f"{values['training']:.0%} of the bf16 FLOP/s; a policy is published and loaded at "
        f"{values['publish_bytes_per_second'] / 1e9:g} GB/s each; responses have the paper's lengths "
        "(median 7,758, mean 9,270, cut at 16,384)."
    )
