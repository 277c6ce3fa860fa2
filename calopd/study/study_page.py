"""tsd.html: a self-contained page with the paper's figures and tables for a study, and its trajectories."""

from html import escape
from pathlib import Path
from typing import Any

from calopd.core.tsd.noise import noise_sentence
from calopd.pages.document import document, figure_html, script_json
from calopd.pages.token_view import AGREEMENT, DEVIATION_BANDS, KEPT_SHARES, deviation_legend, kept_legend
from calopd.rundir.files import write_text
from calopd.study import figures
from calopd.study.advise import HIGH, LOW, advise
from calopd.study.analyze import read_analysis
from calopd.study.layout import StudyDir
from calopd.study.rollout_view import choose, packed
from calopd.study.shards import Study, StudyRollout
from calopd.study.study_assets import SCRIPT, STYLE

DEMO_NOTE = (
    "The demo's synthetic data places the teacher's self-deviation on discourse words by construction: this page "
    "demonstrates the tool and does not confirm the paper's findings."
)


def write_page(directory: Path, out: Path | None = None, *, chosen: list[int], count: int) -> Path:
    """Write the page atomically and return its path."""
    study, analysis = Study(directory), read_analysis(directory)
    texts = study.token_texts()
    places = choose(study, chosen, count)
    rollouts = "".join(
        f'<script type="application/json" id="rollout-{place[2].index}">'
        f"{script_json(packed(study.read(*place), texts))}</script>\n"
        for place in places
    )
    shown = [place[2] for place in places]
    body = "".join(
        (
            header(analysis, directory.name),
            f"<div>{tau_switch(analysis)}{_sets(analysis)}{_forms(analysis)}</div>",
            _relaxation(analysis),
            _view(analysis, shown),
            rollouts,
            f'<script type="application/json" id="known">{script_json(_known(analysis))}</script>',
        )
    )
    return write_html(out or StudyDir(directory).page, f"TSD study {directory.name}", analysis, body)


def write_html(target: Path, title: str, analysis: dict[str, Any], body: str) -> Path:
    style = STYLE + "".join(
        f'main[data-tau="{tau}"] [data-at]:not([data-at="{tau}"]){{display:none}}' for tau in analysis["prevalence"]
    )
    return write_text(target, document(title, body, style=style, script=SCRIPT))


def _known(analysis: dict[str, Any]) -> dict[str, Any]:
    """Data of the page's script, except the rollouts; context indices start with c0 = 0."""
    place = {name: number for number, name in enumerate(analysis["contexts"], 1)}
    groups = {name: [place[context] for context in contexts] for name, contexts in analysis["groups"].items()}
    probes = {
        name: [number for group in name.split(" + ") for number in groups[group]]
        for name in analysis["relaxation"]["probes"]
    }
    return {
        "forms": analysis["forms"],
        "contexts": analysis["contexts"],
        "probes": probes,
        "bands": list(DEVIATION_BANDS),
        "shares": list(KEPT_SHARES),
        "agreement": AGREEMENT,
    }


def header(analysis: dict[str, Any], name: str) -> str:
    study = analysis["study"]
    about = {key: study[key] for key in ("teacher", "student", "data", "source") if study.get(key)}
    facts = "".join(f"<span>{key} <b>{escape(str(value))}</b></span>" for key, value in about.items())
    judged, length = analysis["judged"], analysis["length"]
    cards = [
        ("Tokens", f"{analysis['tokens']:,}", f"{len(analysis['contexts'])} contexts and c0"),
        ("Rollouts", f"{analysis['rollouts']:,}", f"mean {length['mean']:,.0f}, median {length['median']:,.0f} tokens"),
        ("Correct answers", f"{analysis['correct'] / judged:.1%}" if judged else "–", f"of {judged:,} checked"),
        ("Truncated", f"{analysis['truncated']:,}", "rollouts that reached the token limit"),
    ]
    boxes = "".join(
        f'<div class="card"><h2>{label}</h2><p class="value">{value}</p><p>{detail}</p></div>'
        for label, value, detail in cards
    )
    notice = f'<p class="notice">{DEMO_NOTE}</p>' if "examples/demo" in str(study.get("teacher")) else ""
    return (
        f'<header class="top"><p class="kicker">Study of teacher self-deviation</p><h1>{escape(name)}</h1>'
        f'<p class="about">{facts}</p></header>{notice}'
        f'<div class="cards" style="grid-template-columns:repeat(4,1fr)">{boxes}</div>'
        f'<p class="hint">{escape(noise_sentence(analysis.get("noise")))}</p>'
    )


def tau_switch(analysis: dict[str, Any]) -> str:
    """Buttons that set the threshold of all figures and lists; the first threshold is the default."""
    taus = list(analysis["prevalence"])
    buttons = "".join(
        f'<button type="button" data-tau="{tau}" aria-pressed="{str(tau == taus[0]).lower()}">{tau}</button>'
        for tau in taus
    )
    start = f'<script>document.querySelector("main").dataset.tau = "{taus[0]}"</script>'
    label = "threshold τ in nats (a token moves if |D| &gt; τ):"
    return f'<div class="toolbar"><span class="field">{label}</span><div class="switch">{buttons}</div></div>{start}'


def at_every_tau(analysis: dict[str, Any], title: str, note: str, make: Any, css: str = "") -> str:
    """One figure per threshold; the page shows the one for the selected threshold."""
    out = []
    for tau in analysis["prevalence"]:
        figure = make(analysis, tau)
        attributes = f' data-at="{tau}" class="{css}"'
        out.append(figure_html(f"{title}, τ = {tau}", note, figure, attributes=attributes, absent="nothing to compare"))
    return "".join(out)


def _sets(analysis: dict[str, Any]) -> str:
    charts = (
        ("Prevalence", "Share of all tokens that move under each of the two contexts, and under at least one of them.",
         figures.prevalence),
        ("Retention", "Of the tokens that move under the group of the row, the share that also moves under the group "
         "of the column.", figures.retention),
        ("Consistency", "Do the two contexts of a group move the same tokens (overlap), in the same direction "
         "(agreement), by a common amount (SDR)?",
         lambda analysis, tau: figures.consistency(analysis, tau) if analysis["consistency"][tau] else None),
        ("Kinds of tokens", "Share of the tokens of a kind that moves, under the first context of each group.",
         figures.kinds),
    )  # fmt: skip
    cards = "".join(at_every_tau(analysis, title, note, make) for title, note, make in charts)
    return f'<section><h2>Where the teacher moves</h2><div class="charts">{cards}</div></section>'


def _forms(analysis: dict[str, Any]) -> str:
    part = next(iter(analysis["forms"].values()))
    least = part["more_often_than"] + 1
    rule = f"{part['forms']} token forms occur" + (f" {least:,} times or more." if least > 1 else ".")
    if not part["top"][analysis["contexts"][0]]:
        return f'<section><h2>Token forms</h2><p class="absent">{rule} Too few to rank.</p></section>'
    positives = [name for name in analysis["contexts"] if name.endswith("+")] or analysis["contexts"]
    choice = options({name: name for name in analysis["contexts"]}, positives[-1])
    head = (
        f'<div class="toolbar plain"><label class="field">context <select id="form-context">{choice}</select></label>'
        f'<span class="hint" style="margin:0">{rule} ρ = share of its occurrences with |D| &gt; τ.</span></div>'
    )
    return f'<section><h2>Token forms</h2>{head}<div id="lists" class="lists"></div>{_shared(analysis)}</section>'


def _shared(analysis: dict[str, Any]) -> str:
    lengths = list(next(iter(analysis["forms"].values()))["shared"])
    if not lengths:
        return ""
    cards = []
    for which, words in (("top", "highest"), ("bottom", "lowest")):

        def make(analysis: dict[str, Any], tau: str, which: str = which) -> figures.Figure:
            return figures.shared_forms(analysis, tau, lengths[-1], which)

        note = f"Of the {lengths[-1]} forms with the {words} ρ, the number that two contexts have in common."
        cards.append(at_every_tau(analysis, f"Common forms, {words} ρ", note, make, "tall"))
    return f'<div class="charts" style="margin-top:14px">{"".join(cards)}</div>'


def _relaxation(analysis: dict[str, Any]) -> str:
    retained = figure_html(
        "Retained discrepancy",
        f"Σ|A_Cal| / Σ|A_OPD| by relaxation; grey: {LOW:.0%} to {HIGH:.0%}, the range of the paper's best run.",
        figures.relaxation(analysis, "retained"),
    )
    zero = figure_html(
        "Zero-advantage tokens",
        "Share of tokens without advantage, by relaxation.",
        figures.relaxation(analysis, "zero"),
    )
    advice = advise(analysis)
    words = "".join(f"<li>{escape(line)}</li>" for line in (*advice.reasons, *advice.caveats))
    best = f"Recommended: probes <b>{escape(advice.choice.probes)}</b>, relaxation <b>{advice.choice.relaxation:g}</b>"
    return (
        '<section><h2>Effect of Cal-OPD, predicted before training</h2><div class="charts">'
        f'{retained}{zero}</div><div class="notice">{best}<ul>{words}</ul></div></section>'
    )


def options(choices: dict[str, str], selected: str) -> str:
    return "".join(
        f'<option value="{escape(value)}"{" selected" if value == selected else ""}>{escape(text)}</option>'
        for value, text in choices.items()
    )


def _view(analysis: dict[str, Any], rollouts: list[StudyRollout]) -> str:
    """The trajectory view; the script fills in the tokens."""
    if not rollouts:
        return ""
    known = _known(analysis)
    places = {str(number): name for number, name in enumerate(analysis["contexts"], 1)}
    sets = {name: name for name in known["probes"]}
    probes = "eval" if "eval" in sets else next(iter(sets))
    grid = {f"{value:g}": f"{value:g}" for value in analysis["relaxation"]["grid"]}
    listed = "".join(_option(rollout) for rollout in rollouts)
    answers = _buttons("answer", {"all": "all", "correct": "correct", "wrong": "wrong"}, "all")
    colours = _buttons("show", {"deviation": "deviation D(c)", "kept": "retained by Cal-OPD"}, "deviation")
    return f"""<section id="trajectories" data-view="deviation"><h2>Trajectories</h2>
<div class="toolbar">
<span class="field">answers {answers}</span>
<span class="field"><button type="button" class="step" id="before">‹</button><select id="rollout">{listed}</select>
<button type="button" class="step" id="after">›</button></span>
<span class="field">colour {colours}</span>
<label class="field for-deviation">context <select id="context">{options(places, str(len(places) - 1))}</select></label>
<label class="field">probes <select id="probes">{options(sets, probes)}</select></label>
<label class="field">λ <select id="relaxation">{options(grid, "5")}</select></label>
{deviation_legend("D under the chosen context, in nats")}{kept_legend()}
</div>
<p class="hint">Hover over a token to see its numbers. To show other rollouts, run <code>calopd tsd report DIR --rollout
INDEX</code>.</p>
<article id="view"><header></header><div class="question"></div><div class="tokens" tabindex="0"></div></article>
<div id="tip" hidden></div></section>
"""


def _option(rollout: StudyRollout) -> str:
    verdict = {True: "correct", False: "wrong", None: "unchecked"}[rollout.correct]
    text = f"{rollout.index} · {rollout.problem_id} · {verdict} · {rollout.tokens:,} tokens"
    return f'<option value="{rollout.index}" data-correct="{verdict}">{escape(text)}</option>'


def _buttons(name: str, choices: dict[str, str], selected: str) -> str:
    buttons = "".join(
        f'<button type="button" data-{name}="{value}" aria-pressed="{str(value == selected).lower()}">{text}</button>'
        for value, text in choices.items()
    )
    return f'<span class="switch" role="group">{buttons}</span>'
