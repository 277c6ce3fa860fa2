"""Every path inside the directory of a TSD study, defined once."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StudyDir:
    """The directory of one study."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def facts(self) -> Path:
        """The pair of models, the contexts and the sampling settings."""
        return self.path / "study.json"

    @property
    def config(self) -> Path:
        """The resolved configuration of the last collection."""
        return self.path / "config.toml"

    @property
    def tokens(self) -> Path:
        """The text of every token id."""
        return self.path / "tokens.json"

    @property
    def shards(self) -> list[Path]:
        """The shards that exist, in order."""
        return sorted((self.path / "shards").glob("*.parquet"))

    def next_shard(self, worker: int) -> Path:
        """The next shard of a worker; its name holds the worker and a counter."""
        folder = self.path / "shards"
        counts = [int(path.stem.split("-")[1]) for path in folder.glob(f"{worker:03d}-*.parquet")]
        return folder / f"{worker:03d}-{max(counts, default=-1) + 1:06d}.parquet"

    @property
    def analysis(self) -> Path:
        return self.path / "analysis.json"

    @property
    def tables(self) -> Path:
        """The analysis as CSV files."""
        return self.path / "tables"

    @property
    def experiment(self) -> Path:
        """The settings with which an experiment made the study; written when it is complete."""
        return self.path / "experiment.json"

    @property
    def advice(self) -> Path:
        return self.path / "advice.json"

    @property
    def page(self) -> Path:
        return self.path / "tsd.html"

    @property
    def comparison(self) -> Path:
        """The page that compares this study with another."""
        return self.path / "compare.html"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def progress(self, replica: int) -> Path:
        """The counts of one collector, for the progress bar."""
        return self.path / "progress" / f"{replica}.json"

    def refused(self, replica: int) -> Path:
        """The rollouts that one collector could not score, with the reasons."""
        return self.path / f"refused-{replica}.jsonl"

    @property
    def refused_files(self) -> list[Path]:
        return sorted(self.path.glob(self.refused(0).name.replace("0", "*")))

    def noise(self, replica: int) -> Path:
        """Differences between two scorings of c0, by one collector."""
        return self.path / f"noise-{replica}.jsonl"

    @property
    def noise_files(self) -> list[Path]:
        return sorted(self.path.glob(self.noise(0).name.replace("0", "*")))

    @property
    def launcher_lock(self) -> Path:
        """Held by the `calopd tsd collect` that works on this study."""
        return self.path / ".lock"

    @property
    def collectors_lock(self) -> Path:
        """Shared by the collectors of this study."""
        return self.path / ".collectors"
