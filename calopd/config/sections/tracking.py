"""[tracking]: experiment trackers."""

from typing import Literal

from pydantic import Field, field_validator

from calopd.config.nearest import nearest
from calopd.config.sections.base import Section
from calopd.tracking.registry import TRACKERS


class TrackingSection(Section):
    """Experiment trackers that receive the metrics of every step."""

    trackers: tuple[str, ...] = ()
    """Experiment trackers that receive the metrics of every step, by name: `"tensorboard"`, `"wandb"`. `make
    setup` installs their libraries, `pip install -e '.[tensorboard]'` one of them. metrics.jsonl and Prometheus are
    always on."""
    project: str = Field(default="calopd", min_length=1)
    """Project that the runs are grouped under (Weights & Biases)."""
    mode: Literal["offline", "online"] = "offline"
    """Weights & Biases: `"offline"` writes to the run's directory (upload later with `wandb sync`), `"online"` sends
    every step to the server and needs `WANDB_API_KEY`."""

    @field_validator("trackers")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in TRACKERS:
                raise ValueError(f"unknown tracker {name!r}{nearest(name, TRACKERS)}")
        if len(set(names)) < len(names):
            raise ValueError(f"tracking.trackers names a tracker twice: {', '.join(names)}")
        return names
