"""TensorBoard event files in `tensorboard/` of a run; tags are the keys of metrics.jsonl, steps count from 1.

A resumed run is written again from metrics.jsonl: not every reader of event files respects `purge_step`.
"""

from torch.utils.tensorboard import SummaryWriter

from calopd.rundir.files import read_lines
from calopd.tracking.tracker import Line, TrackedRun, Tracker, shown


class TensorBoardTracker(Tracker):
    def __init__(self, run: TrackedRun) -> None:
        folder = run.directory.tensorboard
        for earlier in folder.glob("events.out.tfevents.*"):
            earlier.unlink()
        # The purge is for a TensorBoard that is open: it drops what it read from the earlier files.
        self._writer = SummaryWriter(str(folder), purge_step=0 if run.first_step else None)
        for line in read_lines(run.directory.metrics):
            self.record(line)

    def record(self, line: Line) -> None:
        values = shown(line)
        for key, value in values.items():
            # The new style has double precision; the old one would round to single.
            self._writer.add_scalar(key, value, values["step"], new_style=True, double_precision=True)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
