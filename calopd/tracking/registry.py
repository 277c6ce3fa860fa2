"""The trackers that `[tracking]` can name. metrics.jsonl and Prometheus are always on."""

TRACKERS: dict[str, str] = {
    "tensorboard": "calopd.tracking.tensorboard:TensorBoardTracker",
    "wandb": "calopd.tracking.wandb:WandbTracker",
}
"""Tracker name to `module:class`; a tracker's library is imported only when it is used."""
