"""The phases of the learner: written in its status, shown by the display, a label in Prometheus."""

from enum import StrEnum


class Phase(StrEnum):
    STARTING = "starting"
    WAITING = "waiting for trajectories"
    LEARNING = "learning"
    OPTIMIZER_STEP = "optimizer step"
    CHECKPOINTING = "checkpointing"
    PUBLISHING = "publishing"
    EVALUATING = "evaluating"
    EXPORTING = "exporting"
    DONE = "done"
