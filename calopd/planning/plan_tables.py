"""A plan as text: the splits, the best one as a section of a configuration, and the assumptions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from calopd.config import Config
from calopd.core.paper_results import paper_minutes
from calopd.planning.gpus import GPU, GPUS
from calopd.planning.lengths import PAPER_LENGTHS, Lengths
from calopd.planning.prompt_lengths import SOLUTION_TOKENS
from calopd.planning.rates import ASSUMED, SOURCES, Efficiency
from calopd.planning.splits import Split

LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")
"""A link of Markdown, as sources of assumptions have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All splits of some GPUs for one configuration, the best first."""

    config: Config
    gpu: GPU
    splits: Sequence[Split]
    efficiency: Efficiency = ASSUMED
    responses: Lengths = PAPER_LENGTHS

    @property
    def best(self) -> Split:
        return self.splits[0]

    @property
    def count(self) -> int:
        return sum((self.best.teacher, self.best.rollout, self.best.learner))

    @property
    def run_hours(self) -> float:
        """Hours of the whole run, strictly on-policy, without start-up and evaluations."""
        return self.best.strict.step * self.config.run.steps / 3600

    @property
    def paper(self) -> float | None:
        """The paper's minutes per step."""
        return paper_minutes(self.config.model_dump(mode="json"))

    def cost(self, price: float) -> float:
        """Cost of the run at a price per GPU hour."""
        return self.run_hours * self.count * price


def print_plan(console: Console, plan: Plan, most: int, price: float | None) -> None:
    """Print the best splits and the best one as TOML."""
    config, best = plan.config, plan.best
    title = f"{config.run.name}: a step on {plan.count} x {plan.gpu.name}, predicted; minutes"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))  # fits in 80 columns
    for heading in ("teacher", "rollout", "learner", "strict", "busy t / r / l", "stale 1", "phases", "fits"):
        table.add_column(heading, justify="right", no_wrap=True)
    for split in plan.splits[:most]:
        strict = split.strict
        busy = " / ".join(f"{seconds / 60:.1f}" for seconds in (strict.teacher, strict.rollout, strict.learner))
        table.add_row(
            str(split.teacher), str(split.rollout), str(split.learner), f"{strict.step / 60:.2f}", busy,
            f"{split.stale.step / 60:.2f}", f"{split.phases / 60:.2f}", "yes" if split.fits_all else "no",
        )  # fmt: skip
    console.print(table)
    if not best.fits_all:
        console.print("No split fits:", *(fit.advice for fit in best.fits if not fit.fits), sep="\n  ", markup=False)
        return
    line = f"{config.run.steps} steps: {plan.run_hours:.1f} hours, {plan.run_hours * plan.count:.0f} GPU hours"
    console.print(line + (f", {plan.cost(price):,.0f} at {price:g} per GPU hour" if price else ""), highlight=False)
    if plan.paper:
        console.print(f"The paper reports {plan.paper:.2f} minutes per step on 8 H20.", highlight=False)
    if plan.gpu.name in GPUS:
        console.print(f"\n{best.toml(plan.gpu.name)}\n", highlight=False, markup=False)


def print_comparison(console: Console, plans: Sequence[Plan], price: float | None) -> None:
    """Print the best splits of several configurations side by side."""
    table = Table(title="The best splits; minutes per step, predicted", title_justify="left", box=None)
    for heading in ("", "t / r / l", "strict", "stale 1", "the paper", "hours", "cost"):
        table.add_column(heading, justify="right")
    for plan in plans:
        best = plan.best
        table.add_row(
            plan.config.run.name, f"{best.teacher} / {best.rollout} / {best.learner}", f"{best.strict.step / 60:.2f}",
            f"{best.stale.step / 60:.2f}", f"{plan.paper:.2f}" if plan.paper else "-", f"{plan.run_hours:.1f}",
            f"{plan.cost(price):,.0f}" if price else "-",
        )  # fmt: skip
    console.print(table)


def print_assumptions(console: Console, plan: Plan) -> None:
    """Print what the figures rest on."""
    console.print("Predicted, not measured in a run. The figures rest on:", highlight=False)
    for setting, value, source in assumptions(plan.efficiency, plan.responses):
        console.print(Padding(Text(f"{setting}: {value}"), (0, 0, 0, 2)))
        console.print(Padding(Text(LINK.sub(r"\1: \2", source), style="dim"), (0, 0, 0, 6)))


def assumptions(efficiency: Efficiency = ASSUMED, responses: Lengths = PAPER_LENGTHS) -> list[tuple[str, str, str]]:
    """Each assumption: its meaning, its value, and its source, which is this machine if it was measured."""
    rows = []
    for field in fields(Efficiency):
        meaning, value = MEANINGS[field.name], getattr(efficiency, field.name)
        measured = value != getattr(ASSUMED, field.name)
        source = MEASURED.get(field.name, "measured on this machine") if measured else SOURCES[field.name]
        rows.append((meaning, shown(field.name, value), source))
    solution = f"{SOLUTION_TOKENS:,} tokens", "an assumption; `sol+` and `sol-` alone show a solution to the teacher"
    rows.append(("length of a reference solution", *solution))
    rows.append(("lengths of the responses", responses.shown, responses.source))
    return rows


MEANINGS = {
    "decode_bandwidth": "share of the memory bandwidth that sampling reaches",
    "decode_overhead_seconds": "time that sampling needs in addition, for each token of the batch",
    "prefill": "share of the bf16 FLOP/s that scoring reaches, dense teacher",
    "mixture": "share of the bf16 FLOP/s that scoring reaches, mixture of experts",
    "training": "share of the bf16 FLOP/s that learning reaches",
    "compiled": "share of the bf16 FLOP/s that learning reaches with `learner.compile`",
    "publish_bytes_per_second": "rate at which a policy is published",
    "load_bytes_per_second": "rate at which a policy is loaded",
}
"""Setting of `Efficiency` -> its meaning in the tables."""


MEASURED = {
    "mixture": "the dense rate was measured; the mixture's share of it is assumed",
    "compiled": "the rate without compilation was measured; the gain is assumed",
}


def shown(setting: str, value: float) -> str:
    if setting.endswith("bytes_per_second"):
        return f"{value / 1e9:.2g} GB/s"
    return f"{value * 1e3:.2g} ms" if setting.endswith("seconds") else f"{value:.0%}"
