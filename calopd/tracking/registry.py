"""All trackers by name. metrics.jsonl and Prometheus are always on; `[tracking]` chooses the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from calopd.core.errors import ConfigError
from calopd.tracking.tracker import Line, TrackedRun, Tracker


@dataclass(frozen=True, slots=True)
class TrackerEntry:
    path: str
    """`module:class`; imported only if the tracker is used."""
    library: str = ""
    """The package that it needs; the extra of that name, `calopd[name]`, installs it."""


ALWAYS: dict[str, TrackerEntry] = {
    "jsonl": TrackerEntry("calopd.tracking.jsonl_tracker:JsonlTracker"),
    "prometheus": TrackerEntry("calopd.tracking.prometheus_tracker:PrometheusTracker"),
}

TRACKERS: dict[str, TrackerEntry] = {
    "tensorboard": TrackerEntry("calopd.tracking.tensorboard_tracker:TensorBoardTracker", "tensorboard"),
    "wandb": TrackerEntry("calopd.tracking.wandb_tracker:WandbTracker", "wandb"),
}


def check_libraries(names: Sequence[str]) -> None:
    """Refuse a tracker whose library is not installed."""
    for name in names:
        library = TRACKERS[name].library
        if find_spec(library) is None:
            raise ConfigError(
                f"tracking.trackers names {name!r}, but the package {library} is not installed: "
                f"run `pip install -e '.[{name}]'` in the repository, or remove it from the list"
            )


class Trackers:
    """The trackers of a run, as one."""

    def __init__(self, names: Sequence[str], run: TrackedRun) -> None:
        check_libraries(names)
        entries = {**ALWAYS, **{name: TRACKERS[name] for name in names}}
        self._trackers = [_load(entry.path)(run) for entry in entries.values()]

    def record(self, line: Line) -> None:
        for tracker in self._trackers:
            tracker.record(line)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()


def _load(path: str) -> type[Tracker]:
    module, _, name = path.partition(":")
    loaded: type[Tracker] = getattr(import_module(module), name)
    return loaded
