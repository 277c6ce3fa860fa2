"""Every path inside the directory of an experiment, defined once."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExperimentDir:
    """The directory of an experiment. Experiments that name the same one share runs with equal settings."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def runs(self) -> Path:
        """The directory of every run, by its name."""
        return self.path / "runs"

    def evaluation(self, name: str) -> Path:
        """Samples and results of an evaluated model."""
        return self.path / "evaluations" / name

    def scores(self, name: str) -> Path:
        """The score of every problem: small, and written when the evaluation is complete."""
        return self.path / "scores" / f"{name}.json"

    def discrepancy(self, name: str) -> Path:
        """Discrepancy between teacher and student on held-out problems, and its study."""
        return self.path / "discrepancy" / name

    def study(self, name: str) -> Path:
        return self.path / "studies" / name

    def claim(self, name: str) -> Path:
        """Locked by the host that works on this job."""
        return self.path / "claims" / f"{name}.lock"

    @property
    def durations(self) -> Path:
        """Seconds of every finished job: the remaining time is estimated from them."""
        return self.path / "durations.jsonl"

    def results(self, experiment: str) -> Path:
        """Page, tables and figures of one experiment."""
        return self.path / "results" / experiment

    def page(self, experiment: str) -> Path:
        return self.results(experiment) / "experiment.html"
