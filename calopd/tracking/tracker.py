"""A tracker: one place where the metrics of every step are recorded."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from calopd.rundir.layout import RunDir

Line = Mapping[str, Any]
"""A line of metrics.jsonl: metric key -> value; None = not measured in this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The run whose steps are recorded."""

    directory: RunDir
    """The run's directory; files of trackers go there."""
    run_id: str
    name: str
    first_step: int = 0
    """The step that is recorded next: 0, or the step of the checkpoint that the run resumes from."""
    project: str = "calopd"
    mode: Literal["offline", "online"] = "offline"
    config: Mapping[str, Any] = field(default_factory=dict)


class Tracker(ABC):
    """Created by the first rank of the learner when training starts; a restart creates it again.

    Steps from `run.first_step` on are recorded again after a restart: a tracker drops what it has of them.
    """

    @abstractmethod
    def __init__(self, run: TrackedRun) -> None: ...

    @abstractmethod
    def record(self, line: Line) -> None:
        """Record a step."""

    @abstractmethod
    def close(self) -> None:
        """Write what is buffered; called once, at the end of the run."""


def measured(line: Line) -> dict[str, float]:
    """The metrics that have a value."""
    return {key: value for key, value in line.items() if value is not None}


def shown(line: Line) -> dict[str, float]:
    """The metrics that have a value, for people: steps count from 1, as in the terminal and on pages."""
    return measured(line) | {"step": line["step"] + 1}
