"""`calopd tsd advise`: which probes and which relaxation land in the paper's useful range, with what speaks against."""

from dataclasses import asdict, dataclass
from typing import Any

LOW, HIGH = 0.52, 0.65
"""What the paper's best run retained: 65 % at its first step, which is what a study of the initial student sees, and
52 % at its last."""
ORDER = ("eval", "inst", "ans", "sol")
"""The paper's best first; answers and solutions are task knowledge, which the region should not contain."""
PRIVILEGED = ("ans", "sol")
PAPER_RELAXATION = 5.0
FEW_TOKENS = 100_000
SURFACE_RATIO = 1.5


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of probes at the relaxation that suits it best."""

    probes: str
    relaxation: float
    retained: float
    zero: float
    in_range: bool
    range: tuple[float, float] | None
    """Relaxations of the grid between which the retained ratio is in the useful range."""


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
            f"Train with probes {best.probes}, relaxation {best.relaxation:g}:",
            "",
            "    [method]",
            '    name = "cal_opd"',
            f"    probes = [{groups}]",
            f"    relaxation = {best.relaxation:g}",
            "",
            "Why",
            *(f"- {reason}" for reason in self.reasons),
            "",
            "The probes of this study, each at its best relaxation",
            *(f"- {_words(choice)}" for choice in (best, *self.others)),
            "",
            "Mind",
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
    """The relaxation that retains most without leaving the range; where none is in it, the one nearest to it."""
    retained = curve["retained"]
    inside = [i for i, value in enumerate(retained) if LOW <= value <= HIGH]
    distance = [max(LOW - value, value - HIGH, 0.0) for value in retained]
    place = inside[0] if inside else min(range(len(grid)), key=lambda i: distance[i])
    span = (grid[inside[0]], grid[inside[-1]]) if inside else None
    return Choice(name, grid[place], retained[place], curve["zero"][place], bool(inside), span)


def _preference(choice: Choice) -> tuple[Any, ...]:
    groups = choice.probes.split(" + ")
    privileged = any(group in PRIVILEGED for group in groups)
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
            f"it retains {best.retained:.0%} of the discrepancy; the paper's best run began at {HIGH:.0%} and fell to "
            f"{LOW:.0%} while the student learnt, so the upper end is where to begin"
        )
    elif best.retained > HIGH:
        reasons.append(
            f"even the largest relaxation of the grid retains {best.retained:.0%}: this teacher hardly wobbles under "
            "these probes, and Cal-OPD will differ little from plain OPD"
        )
    else:
        reasons.append(
            f"already λ = 1 retains only {best.retained:.0%}: most of the discrepancy is within the teacher's wobble. "
            "Probe more weakly (inst, a single context), or doubt the pair"
        )
    groups = best.probes.split(" + ")
    if "eval" in groups:
        reasons.append(
            "eval was the paper's best group: it says nothing of the solution, and moved its teacher more than inst"
        )
    if "inst" in analysis["groups"] and "eval" in analysis["groups"]:
        tau = f"{analysis['taus'][0]:g}"
        shares = {name: entry["share"] or 0.0 for name, entry in analysis["prevalence"][tau]["groups"].items()}
        free = max(shares["inst"], shares["eval"])
        reasons.append(f"{free:.0%} of the tokens move by more than {tau} nats without any knowledge of the task")
    return reasons


def _caveats(best: Choice, analysis: dict[str, Any]) -> list[str]:
    caveats = [
        "the range is the paper's, of Qwen3 on mathematics: calibration worked there, which is no promise for here",
        "the study sees the initial student; what is retained falls as the student nears the teacher",
    ]
    if any(group in PRIVILEGED for group in best.probes.split(" + ")):
        caveats.append(
            "these probes show the teacher answers or solutions: part of what they move is knowledge, and the paper "
            "lost 4 points by calibrating with sol"
        )
    if best.relaxation > 2 * PAPER_RELAXATION:
        caveats.append(f"λ {best.relaxation:g} is far above the paper's 5; beyond 5 its results fell")
    if analysis["tokens"] < FEW_TOKENS:
        caveats.append(f"{analysis['tokens']:,} tokens are few; the paper has 60 million. Shares of forms are rough")
    caveats += _consistency_caveats(best, analysis)
    return caveats


def _consistency_caveats(best: Choice, analysis: dict[str, Any]) -> list[str]:
    """Where this teacher is not as the paper found its teachers."""
    tau = f"{analysis['taus'][0]:g}"
    caveats = []
    for group in best.probes.split(" + "):
        sdr = analysis["consistency"][tau].get(group, {}).get("sdr")
        if sdr is not None and sdr < 0.5:
            caveats.append(
                f"the two contexts of {group} share only {sdr:.0%} of their deviation (SDR): the teacher answers to "
                "what they say, so the region holds more than wobble"
            )
    kinds, context = analysis["kinds"][tau], analysis["contexts"][0]
    word, number = (kinds[name]["rho"][context] for name in ("word", "number"))
    if word is not None and number is not None and word < SURFACE_RATIO * number:
        caveats.append(
            f"words hardly move more often than numbers ({word:.0%} and {number:.0%} under {context}): the deviation "
            "does not sit on surface forms here"
        )
    return caveats
