"""The trajectories of the report: every token coloured by the teacher's self-deviation or by the retained advantage."""

import json
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from calopd.core.calibration import Region, retained_ratio, tsd_region, zero_ratio
from calopd.pages.token_view import deviation_class, deviation_legend, kept_class, kept_legend, visible

SHOWN_TOKENS = 2_000
"""Tokens of one response on the page: a response of 16k tokens would make it too heavy to open."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Values of each token of one trajectory; float64 [T]."""

    student: Tensor
    teacher: Tensor
    deviations: dict[str, Tensor]
    """By probe: D(c) = lT(c) - lT."""
    region: Region | None
    """None if the teacher was not probed."""
    kept: Tensor

    @property
    def raw(self) -> Tensor:
        """A_OPD = lT - lS."""
        return self.teacher - self.student

    @property
    def largest_deviation(self) -> Tensor | None:
        """The D of largest magnitude over the probes, with its sign."""
        if not self.deviations:
            return None
        deviation_CT = torch.stack(list(self.deviations.values()))
        return deviation_CT.gather(0, deviation_CT.abs().argmax(0, keepdim=True))[0]


def columns(row: dict[str, Any], relaxation: float) -> Columns:
    """The columns of one line of trajectories.jsonl."""
    teacher = {name: torch.tensor(values, dtype=torch.float64) for name, values in row["teacher_logprobs"].items()}
    base = teacher.pop(next(iter(teacher)))  # the context that was learnt from comes first
    return Columns(
        student=torch.tensor(row["student_logprobs"], dtype=torch.float64),
        teacher=base,
        deviations={name: values - base for name, values in teacher.items()},
        region=tsd_region(base, torch.stack(list(teacher.values())), relaxation) if teacher else None,
        kept=torch.tensor(row["advantage"], dtype=torch.float64),
    )


def render_trajectories(rows: list[dict[str, Any]], relaxation: float) -> str:
    """The section of the page with the recorded trajectories."""
    if not rows:
        return '<section id="trajectories"><h2>Trajectories</h2><p class="absent">none recorded</p></section>\n'
    by_step = groupby(rows, key=lambda row: int(row["step"]))
    blocks = "".join(
        f"<h3>Step {step + 1}</h3>{''.join(_render_trajectory(row, relaxation) for row in group)}"
        for step, group in by_step
    )
    probed = any(len(row["teacher_logprobs"]) > 1 for row in rows)
    view = "deviation" if probed else "kept"
    head = f"<h2>Trajectories</h2>{_toolbar(view, probed)}"
    return f'<section id="trajectories" data-view="{view}">{head}{blocks}</section>\n'


def _render_trajectory(row: dict[str, Any], relaxation: float) -> str:
    known, tokens = columns(row, relaxation), row["tokens"]
    verdict = '<b class="right">right answer</b>' if row["correct"] else '<b class="wrong">wrong answer</b>'
    shown = "" if len(tokens) <= SHOWN_TOKENS else f", the first {SHOWN_TOKENS:,} shown"
    facts = (
        f"problem {escape(str(row['problem_id']))}",
        verdict,
        f"{len(tokens):,} tokens{shown}",
        f"retained {retained_ratio(known.kept, known.raw).item():.0%}",
        f"zero advantage {zero_ratio(known.kept).item():.0%}",
    )
    head = "".join(f"<span>{fact}</span>" for fact in facts)
    text = _render_tokens(tokens, known)
    return f'<article><header>{head}</header><div class="tokens" tabindex="0">{text}</div></article>\n'


def _render_tokens(tokens: list[str], known: Columns) -> str:
    deviation = known.largest_deviation
    spans = []
    for t, token in enumerate(tokens[:SHOWN_TOKENS]):
        names = (
            deviation_class(deviation[t].item()) if deviation is not None else "",
            kept_class(known.kept[t].item(), known.raw[t].item()),
        )
        classes = " ".join(name for name in names if name)
        attribute = f' class="{classes}"' if classes else ""
        spans.append(f'<span{attribute} title="{escape(_tooltip(token, known, t))}">{visible(token)}</span>')
    return "".join(spans)


def _tooltip(token: str, known: Columns, t: int) -> str:
    lines = [
        json.dumps(token, ensure_ascii=False),
        f"lS {known.student[t].item():.3f}   lT {known.teacher[t].item():.3f}",
    ]
    if known.region is not None:
        lines.append("   ".join(f"D({name}) {values[t].item():+.3f}" for name, values in known.deviations.items()))
        lines.append(f"[L, U] = [{known.region.lower[t].item():.3f}, {known.region.upper[t].item():.3f}]")
    lines.append(f"A_OPD {known.raw[t].item():+.3f}   A {known.kept[t].item():+.3f}")
    return "\n".join(lines)


def _toolbar(view: str, probed: bool) -> str:
    """The switch between the two colourings, and the legend of the one that is on."""
    labels = {"deviation": "Teacher's self-deviation", "kept": "Retained advantage"}
    buttons = "".join(
        f'<button type="button" data-show="{name}" aria-pressed="{str(name == view).lower()}"'
        f"{'' if probed or name == 'kept' else ' disabled'}>{label}</button>"
        for name, label in labels.items()
    )
    return (
        f'<div class="toolbar"><div class="switch" role="group" aria-label="Colour the tokens by">{buttons}</div>'
        f"{deviation_legend('D of largest magnitude over the probes, in nats')}{kept_legend()}</div>"
        '<p class="hint">Hover over a token for its values.</p>'
    )
