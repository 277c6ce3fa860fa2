"""The tables of an analysis in the terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table

from calopd.core.contexts import Context
from calopd.core.tsd.noise import noise_sentence

SHOWN_RELAXATIONS = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 80.0)
SHOWN_FORMS = 18


def print_analysis(analysis: dict[str, Any]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    judged = analysis["judged"]
    right = f", {analysis['correct'] / judged:.1%} correct" if judged else ""
    console.print(
        f"{analysis['tokens']:,} tokens in {analysis['rollouts']:,} rollouts "
        f"(mean {analysis['length']['mean']:.0f}, median {analysis['length']['median']:.0f} tokens{right})\n"
    )
    console.print(noise_sentence(analysis.get("noise")) + "\n")
    for tau in analysis["prevalence"]:
        console.print(_groups(analysis, tau))
    console.print(_relaxation(analysis, "retained", "discrepancy that Cal-OPD would retain (percent)"))
    console.print(_relaxation(analysis, "zero", "tokens without advantage under Cal-OPD (percent)"))
    first = f"{analysis['taus'][0]:g}"
    console.print(_kinds(analysis, first))
    console.print(_forms(analysis, first))


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, header_style="dim", padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    return table


def _groups(analysis: dict[str, Any], tau: str) -> Table:
    """Prevalence, retention and consistency of every group at a threshold, in percent."""
    groups = analysis["groups"]
    to = [f"→ {name}" for name in groups]
    table = _table(f"tau = {tau} (percent)", "group", "+", "-", "union", *to, "overlap", "agreement", "SDR")
    prevalence, retention = analysis["prevalence"][tau], analysis["retention"][tau]
    for name, contexts in groups.items():
        singles = [percent(prevalence["contexts"][context]["share"]) for context in contexts]
        paired = analysis["consistency"][tau].get(name, {})
        table.add_row(
            name,
            *[*singles, ""][:2],
            percent(prevalence["groups"][name]["share"]),
            *(percent(retention[name][other]) for other in groups),
            *(percent(paired.get(key)) for key in ("overlap", "agreement", "sdr")),
        )
    return table


def _relaxation(analysis: dict[str, Any], key: str, title: str) -> Table:
    grid = analysis["relaxation"]["grid"]
    table = _table(title, "probes", *(f"λ {value:g}" for value in SHOWN_RELAXATIONS))
    for name, curve in analysis["relaxation"]["probes"].items():
        table.add_row(name, *(percent(curve[key][grid.index(value)]) for value in SHOWN_RELAXATIONS))
    return table


def _kinds(analysis: dict[str, Any], tau: str) -> Table:
    contexts = analysis["contexts"]
    table = _table(f"share of tokens with |D| > {tau}, by kind of token (percent)", "kind", "tokens", *contexts)
    for name, entry in analysis["kinds"][tau].items():
        table.add_row(name, f"{entry['tokens']:,}", *(percent(entry["rho"][context]) for context in contexts))
    return table


def _forms(analysis: dict[str, Any], tau: str) -> Table:
    """Both ends of the ranking under the last positive context, as in the paper's table for sol+."""
    part = analysis["forms"][tau]
    context = [name for name in analysis["contexts"] if Context.named(name).polarity != "-"][-1:] or analysis[
        "contexts"
    ][:1]
    top, bottom = (part[end][context[0]][:SHOWN_FORMS] for end in ("top", "bottom"))
    title = (
        f"{part['forms']} forms with more than {part['more_often_than']:,} occurrences, under {context[0]}, tau = {tau}"
    )
    table = _table(title, "highest ρ", "ρ %", "mean |D|", "lowest ρ", "ρ %", "mean |D|")
    for high, low in zip(top, bottom, strict=True):
        cells = [cell for e in (high, low) for cell in (repr(e["form"])[1:-1], percent(e["rho"]), f"{e['mean']:.2f}")]
        table.add_row(*cells)
    return table
