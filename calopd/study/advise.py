"""`calopd tsd advise`: choose probes and a relaxation in the paper's useful range, with reasons and caveats."""

from dataclasses import asdict, dataclass
from typing import Any

from calopd.core.contexts import CONTEXTS

LOW, HIGH = 0.52, 0.65
"""Retained ratio of the paper's best run: 65 % at the first step, which is the step that a study of the initial
student measures, and 52 % at the last."""
ORDER = ("eval", "inst", "ans", "sol")
"""Best in the paper first; answers and solutions are task knowledge, which the region should not contain."""
PAPER_RELAXATION = 5.0
FEW_TOKENS = 100_000
SURFACE_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of probes at its best relaxation."""

    probes: str
    relaxation: float
    retained: float
    zero: float
    in_range: bool
    range: tuple[float, float] | None
    """Smallest and largest relaxation of the grid with a retained ratio in the useful range."""


@dataclass(frozen=True, slots=True)
class Advice:
    choice: Choice
    others: tuple[Choice, ...]
    reasons: tuple[str, ...]
    caveats: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        best = self.choice
        groups = ", ".join(f'"{name}"' for name in best.probes.split(" + "))
        lines = [
            f"Recommended: probes {best.probes}, relaxation {best.relaxation:g}",
            "",
            "    [method]",
            '    name = "cal_opd"',
            f"    probes = [{groups}]",
            f"    relaxation = {best.relaxation:g}",
            "",
            "Reasons",
            *(f"- {reason}" for reason in self.reasons),
            "",
            "All probes of this study, each at its best relaxation",
            *(f"- {_words(choice)}" for choice in (best, *self.others)),
            "",
            "Caveats",
            *(f"- {caveat}" for caveat in self.caveats),
        ]
        return "\n".join(lines)


def advise(analysis: dict[str, Any]) -> Advice:
    grid = analysis["relaxation"]["grid"]
    choices = [_best(name, grid, curve) for name, curve in analysis["relaxation"]["probes"].items()]
    ranked = sorted(choices, key=_preference)
    best = ranked[0]
    return Advice(best, tuple(ranked[1:]), tuple(_reasons(best, analysis)), tuple(_caveats(best, analysis)))


def _best(name: str, grid: list[float], curve: dict[str, list[float]]) -> Choice:
    """The relaxation in the useful range that retains most; if none is in the range, the nearest to it."""
    retained = curve["retained"]
    inside = [i for i, value in enumerate(retained) if LOW <= value <= HIGH]
    distance = [max(LOW - value, value - HIGH, 0.0) for value in retained]
    place = inside[0] if inside else min(range(len(grid)), key=lambda i: distance[i])
    span = (grid[inside[0]], grid[inside[-1]]) if inside else None
    return Choice(name, grid[place], retained[place], curve["zero"][place], bool(inside), span)


def _privileged(groups: list[str]) -> bool:
    """Whether a context of these groups shows the answer or the solution."""
    return any(context.privileged for context in CONTEXTS.values() if context.group in groups)


def _preference(choice: Choice) -> tuple[Any, ...]:
    groups = choice.probes.split(" + ")
    privileged = _privileged(groups)
    place = max((ORDER.index(group) if group in ORDER else len(ORDER) for group in groups), default=0)
    return not choice.in_range, privileged, len(groups) > 1, place


def _words(choice: Choice) -> str:
    span = f", in range from λ {choice.range[0]:g} to {choice.range[1]:g}" if choice.range else ", never in range"
    return (
        f"{choice.probes}: λ {choice.relaxation:g} retains {choice.retained:.0%} and zeroes {choice.zero:.0%} "
        f"of the tokens{span}"
    )


def _reasons(best: Choice, analysis: dict[str, Any]) -> list[str]:
    reasons = []
    if best.in_range:
        reasons.append(
            f"it retains {best.retained:.0%} of the discrepancy; the paper's best run started at {HIGH:.0%} and fell "
            f"to {LOW:.0%} during training, so start at the upper end"
        )
    elif best.retained > HIGH:
        reasons.append(
            f"even the largest relaxation of the grid retains {best.retained:.0%}: this teacher's self-deviation under "
            "these probes is small, and Cal-OPD will differ little from plain OPD"
        )
    else:
        reasons.append(
            f"λ = 1 retains only {best.retained:.0%}: most of the discrepancy is within the teacher's self-deviation. "
            "Use weaker probes (inst, a single context), or another pair of teacher and student"
        )
    groups = best.probes.split(" + ")
    if "eval" in groups:
        reasons.append(
            "eval was the best group in the paper: it contains no task knowledge, and moved the teacher more than inst"
        )
    if "inst" in analysis["groups"] and "eval" in analysis["groups"]:
        tau = f"{analysis['taus'][0]:g}"
        shares = {name: entry["share"] or 0.0 for name, entry in analysis["prevalence"][tau]["groups"].items()}
        free = max(shares["inst"], shares["eval"])
        reasons.append(f"{free:.0%} of the tokens move by more than {tau} nats without any task knowledge")
    return reasons


def _caveats(best: Choice, analysis: dict[str, Any]) -> list[str]:
    caveats = [
        "the useful range comes from the paper (Qwen3, mathematics) and may differ for other models and tasks",
        "the study measures the initial student; the retained ratio falls as the student approaches the teacher",
    ]
    if _privileged(best.probes.split(" + ")):
        caveats.append(
            "these probes show the teacher answers or solutions, so part of the deviation is task knowledge; "
            "calibrating with sol cost 4 points in the paper"
        )
    if best.relaxation > 2 * PAPER_RELAXATION:
        caveats.append(f"λ {best.relaxation:g} is far above the paper's 5; its results were worse beyond 5")
    if analysis["tokens"] < FEW_TOKENS:
        caveats.append(
            f"the study has only {analysis['tokens']:,} tokens (the paper: 60 million); shares of forms are imprecise"
        )
    caveats += _consistency_caveats(best, analysis)
    return caveats


def _consistency_caveats(best: Choice, analysis: dict[str, Any]) -> list[str]:
    """Findings of the paper that do not hold for this teacher."""
    tau = f"{analysis['taus'][0]:g}"
    caveats = []
    for group in best.probes.split(" + "):
        sdr = analysis["consistency"][tau].get(group, {}).get("sdr")
        if sdr is not None and sdr < 0.5:
            caveats.append(
                f"the two contexts of {group} share only {sdr:.0%} of their deviation (SDR): the teacher responds to "
                "their content, so the region covers more than self-deviation"
            )
    kinds, context = analysis["kinds"][tau], analysis["contexts"][0]
    word, number = (kinds[name]["rho"][context] for name in ("word", "number"))
    if word is not None and number is not None and word < SURFACE_RATIO * number:
        caveats.append(
            f"words move hardly more often than numbers ({word:.0%} and {number:.0%} under {context}): the deviation "
            "is not concentrated on surface forms"
        )
    return caveats
