"""metrics.jsonl: one line per step. The report, the terminal display and later runs read it."""

from calopd.rundir.files import append_line, keep_lines_before
from calopd.tracking.tracker import Line, TrackedRun, Tracker


class JsonlTracker(Tracker):
    def __init__(self, run: TrackedRun) -> None:
        self._file = run.directory.metrics
        keep_lines_before(self._file, run.first_step)

    def record(self, line: Line) -> None:
        append_line(self._file, dict(line))

    def close(self) -> None:
        """Every line is on the disk already."""
