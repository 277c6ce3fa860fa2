"""A panel, and the selectors and expressions that panels share."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    title: str
    description: str
    targets: dict[str, str]
    """Legend -> expression."""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    logarithmic: bool = False
    band: tuple[str, str] | None = None
    """Two legends between which the paper's runs lie."""
    runbook: str = ""
    """The section of docs/runbook.md."""


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def quantile(q: float, histogram: str, by: str, selector: str) -> str:
    return f"histogram_quantile({q}, sum by (le, {by}) (rate({histogram}_bucket{{{selector}}}[$__rate_interval])))"


RUN = 'run=~"$run"'
REPLICA = 'run=~"$run", instance=~"$replica"'
TEACHER = 'instance=~"$replica"'
PROGRESS = f"calopd:progress:ratio{{{RUN}}}"


BAND = ("paper, low", "paper, high")


def band(first: float, last: float, half: float = 0.05) -> dict[str, str]:
    """The paper's curve as a band, from its first to its last value over the run; beside Cal-OPD runs only."""
    progress = f'({PROGRESS} and on (instance, run) calopd_learner_run_info{{method="cal_opd"}})'
    return {
        name: f"{first + side:.2f} + {last - first:.2f} * {progress}"
        for name, side in zip(BAND, (-half, half), strict=True)
    }
