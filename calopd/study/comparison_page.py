"""Comparison page of two studies, e.g. with different teachers, students or thresholds."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from calopd.core.errors import ConfigError
from calopd.pages.document import figure_html
from calopd.study import figures
from calopd.study.analyze import read_analysis
from calopd.study.layout import StudyDir
from calopd.study.study_page import header, write_html

ROWS = ("overlap", "agreement", "sdr")


def write_comparison(first: Path, second: Path, taus: Sequence[float], out: Path | None = None) -> Path:
    """Write a page with the figures of both studies side by side and their numbers in one table."""
    analyses = [read_analysis(directory) for directory in (first, second)]
    chosen = [_tau(analysis, taus, side) for side, analysis in enumerate(analyses)]
    names = [f"{directory.name}, τ = {tau}" for directory, tau in zip((first, second), chosen, strict=True)]
    heads = "".join(f"<div>{header(analysis, name)}</div>" for analysis, name in zip(analyses, names, strict=True))
    pairs = (
        ("Prevalence", "Share of all tokens whose log-probability moves.", figures.prevalence),
        ("Retention", "Of the tokens that move under the group of the row, the share that moves under the group of the "
         "column.", figures.retention),
        ("Consistency", "Overlap, agreement and shared deviation ratio of the two contexts of a group.",
         figures.consistency),
        ("Kinds of tokens", "Share of the tokens of a kind that moves.", figures.kinds),
        ("Retained discrepancy", "Share that Cal-OPD would retain, by relaxation; grey: the paper's useful range.",
         lambda analysis, tau: figures.relaxation(analysis, "retained")),
        ("Zero-advantage tokens", "Share of tokens without advantage, by relaxation.",
         lambda analysis, tau: figures.relaxation(analysis, "zero")),
    )  # fmt: skip
    sections = []
    for title, note, make in pairs:
        drawn = [make(analysis, tau) for analysis, tau in zip(analyses, chosen, strict=True)]
        _same_scale(drawn)
        cards = "".join(
            figure_html(f"{title}: {name}", note, figure) for name, figure in zip(names, drawn, strict=True)
        )
        sections.append(f'<section><h2>{title}</h2><div class="charts">{cards}</div></section>')
    table = _table(analyses, chosen, names)
    body = f'<div class="charts sides">{heads}</div>{table}{"".join(sections)}'
    body += '<script type="application/json" id="known">{}</script>'
    title = " against ".join(directory.name for directory in (first, second))
    return write_html(out or StudyDir(first).comparison, title, analyses[0], body)


def _tau(analysis: dict[str, Any], taus: Sequence[float], side: int) -> str:
    """The threshold of one side; by default its smallest."""
    known = list(analysis["prevalence"])
    tau = f"{taus[min(side, len(taus) - 1)]:g}" if taus else known[0]
    if tau not in known:
        raise ConfigError(
            f"the analysis has no threshold {tau}, only {', '.join(known)}: run `calopd tsd analyze` with --tau {tau}"
        )
    return tau


def _same_scale(drawn: list[figures.Figure]) -> None:
    """Give both figures the same y axis."""
    axes = [figure["layout"]["yaxis"] for figure in drawn]
    if all("range" in axis for axis in axes):
        highest = max(axis["range"][1] for axis in axes)
        for axis in axes:
            axis["range"] = [0, highest]


def rows(analyses: list[dict[str, Any]], taus: list[str]) -> list[tuple[str, list[float | None]]]:
    """Metrics that both studies have, each with its two values."""
    out: list[tuple[str, list[float | None]]] = []
    first, second = analyses

    def add(label: str, read: Any) -> None:
        out.append((label, [read(analysis, tau) for analysis, tau in zip(analyses, taus, strict=True)]))

    for group in (group for group in first["groups"] if group in second["groups"]):
        add(f"{group}: prevalence of the union", lambda a, tau, g=group: a["prevalence"][tau]["groups"][g]["share"])
        for key in ROWS:
            if all(group in a["consistency"][tau] for a, tau in zip(analyses, taus, strict=True)):
                add(f"{group}: {key}", lambda a, tau, g=group, k=key: a["consistency"][tau][g][k])
        place = first["relaxation"]["grid"].index(5.0)
        add(
            f"{group}: retained at λ = 5",
            lambda a, tau, g=group, i=place: a["relaxation"]["probes"][g]["retained"][i],
        )
    for context in (name for name in first["contexts"] if name in second["contexts"]):
        add(f"{context}: words that move", lambda a, tau, c=context: a["kinds"][tau]["word"]["rho"][c])
        add(f"{context}: numbers that move", lambda a, tau, c=context: a["kinds"][tau]["number"]["rho"][c])
    return out


def _table(analyses: list[dict[str, Any]], taus: list[str], names: list[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names, "difference, points"))
    lines = []
    for label, (one, other) in rows(analyses, taus):
        gap = "–" if one is None or other is None else f"{100 * (other - one):+.1f}"
        cells = "".join(f"<td>{'–' if value is None else f'{value:.1%}'}</td>" for value in (one, other))
        lines.append(f"<tr><td>{escape(label)}</td>{cells}<td>{gap}</td></tr>")
    table = f"<table><tr>{head}</tr>{''.join(lines)}</table>"
    return f'<section><h2>Side by side</h2><div class="card">{table}</div></section>'
