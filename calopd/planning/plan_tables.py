"""A plan as text: the splits, the best one as a section of a configuration, and the assumptions."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from rich.console import Console
from rich.table import Table

from calopd.config import Config
from calopd.planning.gpus import GPU, GPUS
from calopd.planning.paper_minutes import paper_minutes
from calopd.planning.rates import ASSUMED, SOURCES, Efficiency
from calopd.planning.splits import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All splits of some GPUs for one configuration, the best first."""

    config: Config
    gpu: GPU
    splits: Sequence[Split]
    efficiency: Efficiency = ASSUMED

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
        return paper_minutes(self.config)

    def cost(self, price: float) -> float:
        """Cost of the run at a price per GPU hour."""
        return self.run_hours * self.count * price


def print_plan(console: Console, plan: Plan, most: int, price: float | None) -> None:
    """Print the best splits and the best one as TOML."""
    config, best = plan.config, plan.best
    title = f"{config.run.name}: a step on {plan.count} x {plan.gpu.name}, predicted; minutes"
    table = Table(title=title, title_justify="left")
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
        console.print("No split fits:", *(fit.advice for fit in best.fits if not fit.fits), sep="\n  ")
        return
    line = f"{config.run.steps} steps: {plan.run_hours:.1f} hours, {plan.run_hours * plan.count:.0f} GPU hours"
    console.print(line + (f", {plan.cost(price):,.0f} at {price:g} per GPU hour" if price else ""), highlight=False)
    if plan.paper:
        console.print(f"The paper reports {plan.paper:.2f} minutes per step on 8 H20.", highlight=False)
    if plan.gpu.name in GPUS:
        console.print(f"\n{best.toml(plan.gpu.name)}\n", highlight=False, markup=False)


def print_comparison(console: Console, plans: Sequence[Plan], price: float | None) -> None:
    """Print the best splits of several configurations side by side."""
    table = Table(title="The best splits; minutes per step, predicted", title_justify="left")
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


def print_assumptions(console: Console, efficiency: Efficiency) -> None:
    """Print what the figures rest on."""
    console.print("Predicted, not measured in a run. The figures rest on:", highlight=False)
    for setting, value, source in assumptions(efficiency):
        console.print(f"  {setting}: {value}: {source}", highlight=False, markup=False, soft_wrap=True)


def assumptions(efficiency: Efficiency = ASSUMED) -> list[tuple[str, str, str]]:
    """Each assumption: its meaning, its value, and its source, which is this machine if it was measured."""
    rows = []
    for field in fields(Efficiency):
        meaning, value = MEANINGS[field.name], getattr(efficiency, field.name)
        measured = value != getattr(ASSUMED, field.name)
        source = MEASURED.get(field.name, "measured on this machine") if measured else SOURCES[field.name]
        rows.append((meaning, shown(field.name, value), source))
    lengths = "median 7,758 tokens, mean 9,270, a fifth cut at 16,384"
    rows.append(("lengths of the responses", lengths, "the paper's, for Qwen3-1.7B; other students may differ"))
    return rows


MEANINGS = {
    "decode_bandwidth": "sampling reaches of the memory bandwidth",
    "decode_overhead_seconds": "and needs in addition, for each token of the batch",
    "prefill": "scoring reaches of the bf16 FLOP/s, dense teacher",
    "mixture": "scoring reaches of the bf16 FLOP/s, mixture of experts",
    "training": "learning reaches of the bf16 FLOP/s",
    "publish_bytes_per_second": "a policy is published at",
    "load_bytes_per_second": "and loaded at",
}
"""Setting of `Efficiency` -> its meaning in the tables."""


MEASURED = {"mixture": "the dense rate was measured; the mixture's share of it is assumed"}


def shown(setting: str, value: float) -> str:
    if setting.endswith("bytes_per_second"):
        return f"{value / 1e9:.2g} GB/s"
    return f"{value * 1e3:.2g} ms" if setting.endswith("seconds") else f"{value:.0%}"
