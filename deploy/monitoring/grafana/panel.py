"""What a panel is, and the selectors and expressions that panels share."""

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
    thresholds: tuple[tuple[float | None, str], ...] = ()
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


def band(low: float, high: float, change: float) -> dict[str, str]:
    """The paper's curve as a band: from low..high at the start, moved by `change` over the run."""
    return {
        "paper, low": f"{low} + {change} * {PROGRESS}",
        "paper, high": f"{high} + {change} * {PROGRESS}",
    }


BAND = ("paper, low", "paper, high")
