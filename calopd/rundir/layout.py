"""Every path inside a run's directory, defined once."""

import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunDir(os.PathLike[str]):
    """The directory of one run; each property is the path of one file or folder in it, whether it exists or not."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.toml"

    @property
    def run_id(self) -> Path:
        """The run's id and the time of its first start."""
        return self.path / "run.json"

    @property
    def problems(self) -> Path:
        """Digest and number of the problems that the run trains on."""
        return self.path / "problems.json"

    @property
    def teacher(self) -> Path:
        """The teacher at first contact: every replica is compared with it."""
        return self.path / "teacher.json"

    @property
    def metrics(self) -> Path:
        """One line per step, full precision."""
        return self.path / "metrics.jsonl"

    @property
    def trajectories(self) -> Path:
        """A few trajectories, token by token, for the report."""
        return self.path / "trajectories.jsonl"

    @property
    def summary(self) -> Path:
        """The results of a finished run."""
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def model(self) -> Path:
        """The trained student in Hugging Face format."""
        return self.path / "model"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def policies(self) -> Path:
        """Published policies, unless `run.policies` names another volume."""
        return self.path / "policies"

    @property
    def evaluations(self) -> Path:
        """Results on the held-out problems, one file per policy version."""
        return self.path / "evaluations"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def trace_parts(self) -> Path:
        """Spans of each process."""
        return self.path / "trace"

    @property
    def trace(self) -> Path:
        """The trace of all processes, for Perfetto."""
        return self.path / "trace.json.gz"

    @property
    def tensorboard(self) -> Path:
        """Event files of TensorBoard."""
        return self.path / "tensorboard"

    @property
    def wandb(self) -> Path:
        """Folders of Weights & Biases, which chooses this name."""
        return self.path / "wandb"

    @property
    def redis(self) -> Path:
        """Data of the embedded Redis server."""
        return self.path / "redis"

    @property
    def launcher_lock(self) -> Path:
        """Held by the `calopd run` that works on this run."""
        return self.path / ".lock"

    @property
    def learner_lock(self) -> Path:
        """Held by the learner that works on this run."""
        return self.path / ".learner.lock"

    def checkpoint(self, step: int) -> Path:
        return numbered(self.checkpoints, step)

    def evaluation(self, version: int) -> Path:
        return self.evaluations / f"{numbered(self.evaluations, version).name}.json"

    @property
    def evaluation_files(self) -> list[Path]:
        """The evaluations that exist, by version."""
        return sorted(self.evaluations.glob("*.json"))

    @property
    def contents(self) -> list[Path]:
        """Everything in the directory except the launcher's lock, which exists before the run does."""
        return [path for path in self.path.glob("*") if path != self.launcher_lock]

    @property
    def is_run(self) -> bool:
        """Whether a run was started here: only calopd writes this id. Any project may have a config.toml."""
        try:
            return isinstance(json.loads(self.run_id.read_text(encoding="utf-8"))["id"], str)
        except (OSError, ValueError, KeyError, TypeError):
            return False


def numbered(folder: Path, number: int) -> Path:
    """The subfolder of a step or policy version; names sort as their numbers do."""
    return folder / f"{number:06d}"


def numbers(folder: Path, containing: str = "") -> list[int]:
    """The numbers of the subfolders, in order; with `containing`, of those that are complete: they hold that file."""
    found = (path for path in folder.glob("*") if path.name.isdigit() and (path / containing).exists())
    return sorted(int(path.name) for path in found)
