"""Audit of a run that went through faults: its state in its directory, in Redis and in the process table."""

import json
from collections import Counter
from hashlib import sha256
from pathlib import Path

import psutil

from calopd.core.step_metrics import METRICS
from calopd.rundir import checkpoints
from calopd.rundir.files import REPLACED, TEMPORARY, read_lines
from calopd.rundir.layout import RunDir
from calopd.rundir.run_id import read_run_id
from tests.chaos.stage import Stage, Undisturbed

TIMES = {metric.key for metric in METRICS if metric.unit == "seconds"} | {"seconds"}
KEPT_KEYS = ("batches", "evaluations", "learner", "pins", "policies", "tickets")
"""Keys that stay in Redis as long as the run: what belongs to one step must be gone."""


class Audit:
    """Collects what is wrong; `problems` is empty if nothing is."""

    def __init__(self, stage: Stage, undisturbed: Undisturbed) -> None:
        self._stage, self._undisturbed = stage, undisturbed
        self._run_dir, self._expected = stage.config.run_dir, RunDir(Path(undisturbed.directory))
        self.problems: list[str] = []
        self.checked: Counter[str] = Counter()

    def run(self) -> list[str]:
        """Everything but the process table, while Redis is still there."""
        self._tickets()
        self._lines()
        self._policies()
        self._weights()
        self._redis()
        self._disk()
        return self.problems

    def _expect(self, what: str, ok: bool, message: str) -> None:
        self.checked[what] += 1
        if not ok:
            self.problems.append(message)

    def _tickets(self) -> None:
        """Every ticket of every step once, by the record of the newest checkpoint."""
        config = self._stage.config
        newest = checkpoints.latest(self._run_dir)
        if newest is None:
            self.problems.append("there is no checkpoint")
            return
        record = checkpoints.read_record(newest)
        self._expect("steps", record.step == config.run.steps, f"the last checkpoint is of step {record.step}")
        wanted = {f"step-{step:06d}": list(range(config.learner.trajectories)) for step in range(config.run.steps)}
        for batch in sorted(wanted.keys() | record.used.keys()):
            used = record.used.get(batch)
            self._expect("batches of tickets", used == wanted.get(batch), f"{batch}: tickets {used} were used")
        summary = json.loads(self._run_dir.summary.read_text())
        total = config.run.steps * config.learner.trajectories
        for key in ("tickets_issued", "trajectories_used"):
            self._expect("summary", summary[key] == total, f"summary: {key} = {summary[key]}, expected {total}")

    def _lines(self) -> None:
        """One line per step, equal to the undisturbed run's in every number that is not a time."""
        lines, expected = (read_lines(run.metrics) for run in (self._run_dir, self._expected))
        steps = [line["step"] for line in lines]
        self._expect("lines", steps == [line["step"] for line in expected], f"metrics.jsonl has the steps {steps}")
        for line, other in zip(lines, expected, strict=False):
            for key in sorted((line.keys() | other.keys()) - TIMES):
                same = line.get(key) == other.get(key)
                message = f"step {line['step']}: {key} is {line.get(key)}, undisturbed {other.get(key)}"
                self._expect("numbers of steps", same, message)

    def _policies(self) -> None:
        """Every policy was announced with the digest of the undisturbed run's, however often it was published."""
        ours, theirs = self._stage.announced, self._undisturbed.announced
        for version in sorted(ours.keys() | theirs.keys(), key=int):
            message = f"policy {version} was announced as {ours.get(version)}, undisturbed {theirs.get(version)}"
            self._expect("announced policies", ours.get(version) == theirs.get(version), message)

    def _weights(self) -> None:
        names = sorted(path.name for path in self._expected.model.iterdir())
        for name in names:
            ours, theirs = (run.model / name for run in (self._run_dir, self._expected))
            same = ours.exists() and digest(ours) == digest(theirs)
            self._expect("files of the trained model", same, f"model/{name} differs from the undisturbed run's")

    def _redis(self) -> None:
        """No ticket, claim, trajectory or dead letter is left."""
        client, prefix = self._stage.redis(), f"calopd:{read_run_id(self._run_dir)}:"
        for raw in client.scan_iter(match=f"{prefix}*", count=1_000):
            key = raw.decode()
            self._expect("keys in Redis", key.removeprefix(prefix) in KEPT_KEYS, f"Redis still has the key {key}")
        queue = self._stage.queue()
        left = {"open batches": queue.open_batches(), "dead letters": queue.dead_letters(), "depth": queue.depth()}
        self._expect("queue", not left["open batches"], f"the queue still has {left}")
        self._expect("queue", not left["dead letters"], f"the queue has {left}")
        self._expect("queue", not queue.depth().waiting + queue.depth().claimed, f"the queue still has {left}")

    def _disk(self) -> None:
        """No temporary file or folder of a process that was killed."""
        for path in self._run_dir.path.rglob("*"):
            self._expect("files", path.suffix not in (TEMPORARY, REPLACED), f"left over: {path}")
        for path in (self._stage.root / "tmp").iterdir():
            self._expect("temporary files", path.name.startswith("torchinductor"), f"left over: {path}")

    def process_table(self) -> list[str]:
        """Call it when the stage is closed: nothing that it started may be alive."""
        temporary = self._stage.environment["TMPDIR"]
        for process in psutil.process_iter(["cmdline", "environ"]):
            words = " ".join(process.info["cmdline"] or ())
            # Engines name nothing of the run on their command line; their temporary folder is one inside.
            ours = str(self._stage.root) in words or (process.info["environ"] or {}).get("TMPDIR", "").startswith(
                temporary
            )
            self._expect("processes", not ours, f"still running: {words[:200]}")
        return self.problems


def digest(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()
