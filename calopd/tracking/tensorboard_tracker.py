"""TensorBoard event files in `tensorboard/` of the run's directory; tags are the keys of metrics.jsonl."""

from torch.utils.tensorboard import SummaryWriter

from calopd.tracking.tracker import Line, TrackedRun, Tracker, measured


class TensorBoardTracker(Tracker):
    def __init__(self, run: TrackedRun) -> None:
        # TensorBoard drops what earlier event files have from `purge_step` on.
        self._writer = SummaryWriter(run.directory.tensorboard, purge_step=run.first_step or None)

    def record(self, line: Line) -> None:
        for key, value in measured(line).items():
            self._writer.add_scalar(key, value, line["step"], new_style=True, double_precision=True)
        # Before the checkpoint of the step: a step of a checkpoint is not recorded again.
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
