"""The trackers of a run, started from its configuration."""

import tomllib

from calopd.config import Config
from calopd.tracking.registry import Trackers
from calopd.tracking.tracker import TrackedRun


def start_trackers(config: Config, run_id: str, first_step: int) -> Trackers:
    """All trackers of the run, ready for the step `first_step`."""
    settings = config.tracking
    return Trackers(
        settings.trackers,
        TrackedRun(
            directory=config.run_dir,
            run_id=run_id,
            name=config.run.name,
            first_step=first_step,
            project=settings.project,
            mode=settings.mode,
            config=tomllib.loads(config.to_toml()),  # without the password of the queue
        ),
    )
