"""evaluation.html: result tables, accuracy by problem, and responses."""

from collections.abc import Sequence
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import Any

from calopd.core.options import Sampling
from calopd.evaluation import accuracy_tables
from calopd.evaluation.paired_comparison import Comparison
from calopd.evaluation.results import MEAN, Results
from calopd.pages.cards import Card, percent, points, render_card
from calopd.pages.charts import SERIES_COLOURS, base_layout
from calopd.pages.document import document, figure_html
from calopd.rundir.files import write_text

SHOWN_PROBLEMS = 40
"""Problems per benchmark whose responses are shown; results.json contains all."""
SHOWN_RESPONSES = 4
HEAD, TAIL = 1_500, 2_500
"""Characters shown from the beginning and the end of a long response."""

NAMES = ("benchmark", "")
"""Heads of columns that hold words."""


def write_page(target: Path, results: Sequence[Results], comparison: Comparison | None) -> Path:
    title = " · ".join(result.label for result in results)
    body = _header(results, comparison) + _tables(results, comparison)
    body += "".join(_benchmark(name, results) for name in results[0].names)
    return write_text(target, document(f"{title} evaluation", body))


def _header(results: Sequence[Results], comparison: Comparison | None) -> str:
    first = results[0].settings
    about = {
        "samples per problem": first["n"],
        **{field.name.replace("_", " "): f"{first[field.name]:,}" for field in fields(Sampling)},
        "seed": first["seed"],
        "sampler": ", ".join(sorted({s for r in results for s in r.settings["samplers"]})),
    }
    facts = "".join(f"<span>{key} <b>{escape(str(value))}</b></span>" for key, value in about.items())
    cards = "".join(render_card(card) for card in _cards(results, comparison))
    return (
        '<header class="top"><p class="kicker">Evaluation</p>'
        f"<h1>{escape(', '.join(r.label for r in results))}</h1>"
        f'<p class="about">{facts}</p></header><div class="cards even">{cards}</div>'
    )


def _cards(results: Sequence[Results], comparison: Comparison | None) -> list[Card]:
    gains = {row.label: row.gains for row in comparison.rows} if comparison else {}
    cards = []
    for result in results:
        row = result.summaries()[-1]
        detail = f"95 % interval {accuracy_tables.interval(row.avg)}"
        if gain := gains.get(result.label, {}).get(row.name):
            low, high = points(gain.estimate.low), points(gain.estimate.high)
            detail += f"; {points(gain.estimate.value)} points ({low} to {high})"
        cards.append(Card(f"{result.label}, Avg@{row.n}", percent(row.avg.value), detail))
    return cards


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], strong: Sequence[bool] = ()) -> str:
    """A table; cells are HTML, and the first cell of a row is its header. Names stand left, numbers right."""
    sides = [' class="name"' if name in NAMES else "" for name in head]
    body = ""
    for number, cells in enumerate(rows):
        mark = ' class="strong"' if number < len(strong) and strong[number] else ""
        inner = "".join(f"<td{side}>{cell}</td>" for cell, side in zip(cells[1:], sides[1:], strict=True))
        body += f"<tr{mark}><th>{cells[0]}</th>{inner}</tr>"
    heads = "".join(f"<th{side}>{escape(name)}</th>" for name, side in zip(head, sides, strict=True))
    return (
        f'<div class="wide"><table class="results"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _tables(results: Sequence[Results], comparison: Comparison | None) -> str:
    parts = []
    if comparison:
        parts.append("<section><h2>Comparison</h2>" + _comparison(comparison) + "</section>")
        parts.append(
            f"<section><h2>Gains over {escape(comparison.student.label)}</h2>"
            "<p class='hint'>Percentage points, with 95 % interval and p-value of a paired bootstrap over problems.</p>"
            + _gains(comparison)
            + "</section>"
        )
    rows = [(result.label, row) for result in results for row in result.summaries()]
    head = ["model", *(name.replace("@n", f"@{results[0].n}") for name in accuracy_tables.SUMMARY)]
    cells = [[escape(label), *(escape(show(row)) for show in accuracy_tables.SUMMARY.values())] for label, row in rows]
    table = _table(head, cells, [row.name == MEAN for _, row in rows])
    notes = "".join(f"<p class='hint'>{escape(note)}</p>" for note in accuracy_tables.size_notes(results[0]))
    return "".join([*parts, f"<section><h2>Results by benchmark</h2>{notes}{table}</section>"])


def _comparison(comparison: Comparison) -> str:
    rows = []
    for row in comparison.rows:
        values = [
            (accuracy_tables.percent(row.values[c].value), comparison.is_best(row, c)) for c in comparison.columns
        ]
        rows.append([escape(row.label), *(f"<b>{text}</b>" if best else text for text, best in values)])
    return _table([f"Avg@{comparison.n}, %", *map(accuracy_tables.column_name, comparison.columns)], rows)


def _gains(comparison: Comparison) -> str:
    rows = [
        [
            escape(row.label),
            escape(accuracy_tables.column_name(column)),
            accuracy_tables.points(gain),
            accuracy_tables.p_value(gain.p_value),
            "significant" if gain.significant else "not significant",
        ]
        for row in comparison.rows[1:]
        for column, gain in row.gains.items()
    ]
    return _table(["model", "benchmark", "gain", "p", ""], rows)


def _benchmark(name: str, results: Sequence[Results]) -> str:
    samples = {result.label: result.samples(name) for result in results}
    scores = {result.label: dict(zip(samples[result.label], result.scores(name), strict=True)) for result in results}
    problems = {p["id"]: p for p in results[0].benchmark(name)["problems"]}
    problems = {key: p for key, p in problems.items() if all(key in score for score in scores.values())}
    easiest_first = sorted(problems, key=lambda p: -sum(score[p] for score in scores.values()))
    shares = figure_html(
        "Accuracy by problem",
        "Share of correct responses; easiest problems first. Drag to zoom in.",
        _bars(easiest_first, scores),
        height=110 + 110 * len(scores),
    )
    shown = _shown(easiest_first, scores)
    note = (
        f"{len(shown)} of {len(problems)} problems, those with the largest differences between models first; "
        "results.json contains all."
    )
    articles = "".join(_problem(problems[p], {label: s[p] for label, s in samples.items()}) for p in shown)
    return (
        f'<section><h2>{escape(name)}</h2><div class="charts">{shares}</div></section>'
        f"<section><h2>{escape(name)}: responses</h2><p class='hint'>{escape(note)}</p>{articles}</section>"
    )


def _shown(ordered: list[str], scores: dict[str, dict[str, float]]) -> list[str]:
    spread = {p: max(s[p] for s in scores.values()) - min(s[p] for s in scores.values()) for p in ordered}
    return sorted(ordered, key=lambda p: -spread[p])[:SHOWN_PROBLEMS]


def _bars(ordered: list[str], scores: dict[str, dict[str, float]]) -> dict[str, Any]:
    traces = [
        {
            "type": "bar",
            "name": escape(label),
            "x": list(range(1, len(ordered) + 1)),
            "y": [score[p] for p in ordered],
            "customdata": [escape(p) for p in ordered],
            "hovertemplate": "%{customdata}: %{y:.0%}<extra>" + escape(label) + "</extra>",
            "marker": {"color": SERIES_COLOURS[number % len(SERIES_COLOURS)], "line": {"width": 0}},
            "xaxis": "x",
            "yaxis": f"y{number + 1 if number else ''}",
        }
        for number, (label, score) in enumerate(scores.items())
    ]
    layout = base_layout(legend=len(scores) > 1) | {"bargap": 0.1 if len(ordered) < 100 else 0}
    axis = layout["yaxis"]
    last = f"y{len(scores) if len(scores) > 1 else ''}"
    layout["xaxis"] |= {"title": {"text": "problem", "standoff": 6}, "anchor": last}
    # One subplot per model: with grouped bars, five hundred problems would make each bar too thin to see.
    for number in range(len(scores)):
        top = 1 - number / len(scores)
        domain = [top - 1 / len(scores) + (0.07 if len(scores) > 1 else 0), top]
        layout[f"yaxis{number + 1 if number else ''}"] = axis | {
            "tickformat": ".0%",
            "tickvals": [0, 0.5, 1],
            "range": [0, 1.02],
            "domain": domain,
        }
    return {"data": traces, "layout": layout}


def _problem(problem: dict[str, Any], by_model: dict[str, list[dict[str, Any]]]) -> str:
    answers = ""
    for label, samples in by_model.items():
        right = sum(sample["correct"] for sample in samples)
        for sample in _chosen(samples):
            mark = '<span class="right">correct</span>' if sample["correct"] else '<span class="wrong">wrong</span>'
            said = "no answer" if sample["answer"] is None else escape(sample["answer"][:80])
            cut = ", truncated" if sample["truncated"] else ""
            answers += (
                f"<details><summary>{escape(label)} ({right}/{len(samples)}), sample {sample['sample']}: {mark}, {said}"
                f" <span class='hint'>{sample['length']:,} tokens{cut}</span></summary>"
                f"<pre>{escape(_shortened(sample['text']))}</pre></details>"
            )
    return (
        f"<article><header><span>{escape(problem['id'])}</span>"
        f"<span>gold answer <b>{escape(problem['answer'])}</b></span></header>"
        f'<div class="question">{escape(problem["problem"])}</div><div class="answers">{answers}</div></article>'
    )


def _chosen(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A selection of correct and wrong samples."""
    right, wrong = ([s for s in samples if s["correct"] is good] for good in (True, False))
    half = SHOWN_RESPONSES // 2
    kept = right[: max(half, SHOWN_RESPONSES - len(wrong))] + wrong[: max(half, SHOWN_RESPONSES - len(right))]
    return sorted(kept, key=lambda s: s["sample"])


def _shortened(text: str) -> str:
    if len(text) <= HEAD + TAIL:
        return text
    return f"{text[:HEAD]}\n\n[… {len(text) - HEAD - TAIL:,} characters …]\n\n{text[-TAIL:]}"
