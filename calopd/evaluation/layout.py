"""Every path inside the directory of an evaluation, defined once."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EvaluationDir:
    """The directory of one evaluated model."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def job(self) -> Path:
        """The model, the problems and the sampling settings."""
        return self.path / "job.json"

    @property
    def results(self) -> Path:
        """Every sample, and the scores."""
        return self.path / "results.json"

    @property
    def lock(self) -> Path:
        """Held by the `calopd eval` that works on this model."""
        return self.path / ".lock"

    @property
    def contents(self) -> list[Path]:
        """Everything in the directory except the lock, which exists before the job does."""
        return [path for path in self.path.glob("*") if path != self.lock]

    @property
    def is_evaluation(self) -> bool:
        """Whether a model was evaluated here: no other program writes such a job."""
        try:
            return {"settings", "benchmarks"} <= json.loads(self.job.read_text(encoding="utf-8")).keys()
        except (OSError, ValueError, AttributeError):
            return False

    def remove_samples(self) -> None:
        """Remove the samples, the results and the job, without which this is no evaluation; other files stay."""
        for path in (self.results, self.path / "samples", self.logs, *self.path.glob("weights-*"), self.job):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def journals(self) -> list[Path]:
        """The journals that exist, of all replicas."""
        return sorted((self.path / "samples").glob("*.jsonl"))

    def journal(self, replica: int) -> Path:
        """The samples of one replica, written one by one."""
        return self.path / "samples" / f"{replica}.jsonl"

    def weights(self, replica: int) -> Path:
        """The weights of a checkpoint, converted for one replica."""
        return self.path / f"weights-{replica}"


def page_file(out: Path) -> Path:
    """The page on all models of one `calopd eval`."""
    return out / "evaluation.html"
