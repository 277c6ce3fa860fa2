"""Weights & Biases, in `wandb/` of the run's directory; names are the keys of metrics.jsonl, steps count from 1.

Offline by default: `wandb sync <run>/wandb/offline-run-*` uploads the run later. A resumed offline run is written
again from metrics.jsonl into a new folder that replaces the earlier one, so that one folder holds every step once.
"""

import os
import re
import shutil

import wandb

from calopd.rundir.files import read_lines
from calopd.tracking.tracker import Line, TrackedRun, Tracker, shown


class WandbTracker(Tracker):
    def __init__(self, run: TrackedRun) -> None:
        run_id = re.sub(r"[^\w.-]", "_", run.run_id)
        offline = run.mode == "offline"
        if offline:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # offline: nothing is sent anywhere
            for earlier in run.directory.wandb.glob(f"offline-run-*-{run_id}"):
                shutil.rmtree(earlier)
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run_id,
            dir=run.directory.path,
            config=dict(run.config),
            mode=run.mode,
            resume=None if offline else "allow",
            settings=wandb.Settings(console="off", silent=True, disable_git=True),
        )
        for line in read_lines(run.directory.metrics):
            if shown(line)["step"] >= self._run.step:  # the server has the steps before; an offline run starts at 0
                self.record(line)

    def record(self, line: Line) -> None:
        values = shown(line)
        self._run.log(values, step=int(values["step"]))

    def close(self) -> None:
        self._run.finish()
        wandb.teardown()  # its process writes the last records after `finish` has returned
