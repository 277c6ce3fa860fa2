"""The order of a step's side effects, on which crash safety depends."""

import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from calopd.config import load_config
from calopd.core.errors import StaleTrajectory, TooFewTrajectories
from calopd.core.heartbeat import Heartbeat
from calopd.core.phase import Phase
from calopd.core.step_result import MeasuredStep, StepResult
from calopd.core.types import Ticket
from calopd.rundir.checkpoints import Record
from calopd.rundir.tensor_files import TensorStream
from services.learner import loop
from services.learner.batching import PolicyWanted
from services.learner.checkpoint import Durable
from services.learner.coordinator import Follower
from services.learner.status import Status, create_status_app
from services.learner.trainer import Update

TOML = """
[run]
name = "order"
steps = 3
[data]
train = "{root}/train.jsonl"
[student]
path = "student"
[teacher]
path = "teacher"
[learner]
trajectories = 4
samples = 2
checkpoint_every = 2
[queue]
url = "redis://127.0.0.1:1/0"
"""


class Ranks:
    """One rank alone."""

    rank, size = 0, 1

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]


class Result(int):
    """A trajectory that is only counted."""

    sample = SimpleNamespace(policy_version=0, policy_sha256="sha of 0")


class Recorder(Follower):
    """A coordinator that writes down what it is asked for."""

    def __init__(self, calls: list[str], arriving: list[int]) -> None:
        self.calls, self._arriving = calls, arriving
        self.lines: list[MeasuredStep] = []
        self.phases: list[Phase] = []
        self.tickets: list[list[Ticket]] = []

    def enter(self, phase, progress=""):
        self.phases.append(phase)

    def open_step(self, step, tickets, ranks):
        self.calls.append(f"open {step}")
        self.tickets.append(tickets)
        return iter([None, [self._arriving[:2]], [self._arriving[2:]]])

    def report(self, measured):
        self.calls.append(f"line {measured.step}")
        self.lines.append(measured)

    def publish(self, version, weights):
        self.calls.append(f"publish {version}")
        return f"sha of {version}"

    def evaluate(self, version):
        self.calls.append(f"evaluate {version}")

    def checkpoint_durable(self, durable):
        self.calls.append(f"durable {durable.step}")

    def export(self, student, weights):
        self.calls.append("export")


class CountingTrainer:
    """A trainer that only counts what it is given; a checkpoint is written while it waits for trajectories."""

    needs_whole_step, student, probes = False, None, ()

    def __init__(self, calls: list[str]) -> None:
        self.calls, self.result = calls, StepResult()
        self.writing: int | None = None

    def begin(self, step):
        self.result = StepResult()

    def learn(self, trajectories, plan):
        self.result.used += trajectories

    def optimizer_step(self, sums):
        self.calls.append("optimizer step")
        return Update(1e-6, 1.0, 4, 0.0)

    def save(self, record: Record) -> None:
        assert self.writing is None, "two checkpoints at once"
        self.calls.append(f"save {record.step}, {record.trajectories_used} used")
        self.writing = record.step

    def saved(self, *, wait: bool = False) -> Durable | None:
        step, self.writing = self.writing, None
        return Durable(step, 0.0) if step is not None else None

    def policy_weights(self):
        return TensorStream.of({})

    def exported_weights(self):
        return TensorStream.of({})


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "train.jsonl").write_text('{"id": "a", "problem": "p", "answer": "1"}\n')
    (tmp_path / "run.toml").write_text(TOML.format(root=tmp_path))
    load_config(tmp_path / "run.toml", [f'run.dir="{tmp_path}"'], {}).run_dir.path.mkdir()

    def start(arriving: list[int], *settings: str, heartbeat: Heartbeat | None = None) -> Recorder:
        config = load_config(tmp_path / "run.toml", [f'run.dir="{tmp_path}"', *settings], {})
        recorder = Recorder([], arriving)
        queue = SimpleNamespace(run="r", results=lambda batch, indices: [Result(i) for i in indices], dead_letters=list)
        monkeypatch.setattr(loop, "open_queue", lambda url, run: queue)
        monkeypatch.setattr(loop, "Coordinator", lambda config, queue, heartbeat: recorder)
        monkeypatch.setattr(loop, "show_lead", lambda queue: None)
        monkeypatch.setattr(loop, "build_trainer", lambda config, ranks: CountingTrainer(recorder.calls))
        training = loop.TrainingLoop(config, cast(loop.Ranks, Ranks()), heartbeat)
        try:
            training.run()
        finally:
            recorder.calls.append("end")
        return recorder

    return start


def test_a_policy_and_its_tickets_come_first_and_the_checkpoint_is_written_meanwhile(train):
    recorder = train([0, 1, 2, 3])
    assert recorder.calls == [
        "publish 0", "open 0", "evaluate 0",
        "optimizer step", "publish 1", "open 1", "line 0", "evaluate 1",
        "optimizer step", "publish 2", "open 2", "line 1", "evaluate 2", "save 2, 8 used",
        "durable 2", "optimizer step", "publish 3", "line 2", "evaluate 3", "save 3, 12 used",
        "durable 3", "export", "end",
    ]  # fmt: skip
    assert recorder.phases[-2:] == [Phase.EXPORTING, Phase.DONE]
    assert [line.missing for line in recorder.lines] == [0, 0, 0]
    assert [tickets[0].policy_version for tickets in recorder.tickets] == [0, 1, 2]
    assert not any(tickets[0].newer_policy for tickets in recorder.tickets)


def test_a_policy_that_a_rollout_cannot_read_is_published_again_by_all_ranks(train, monkeypatch):
    """It is not kept in memory: `learner.snapshot_every` is 1."""
    rounds = Recorder.open_step

    def asked(self: Recorder, step: int, tickets: list[Ticket], ranks: int) -> Any:
        return chain([PolicyWanted(step)] if step == 1 else [], rounds(self, step, tickets, ranks))

    monkeypatch.setattr(Recorder, "open_step", asked)
    calls = train([0, 1, 2, 3]).calls
    assert [call for call in calls if call.startswith(("publish", "opti"))] == [
        "publish 0", "optimizer step", "publish 1", "publish 1", "optimizer step", "publish 2", "optimizer step",
        "publish 3",
    ]  # fmt: skip


def test_a_phase_that_never_ends_is_noticed(train, monkeypatch):
    """A collective, or a kernel, that does not come back."""
    heartbeat, given_up = Heartbeat(0.05), threading.Event()
    stalled: list[str] = []

    def give_up(reason: str) -> None:
        stalled.append(reason)
        given_up.set()

    def hang(self: CountingTrainer, trajectories: list[int], plan: Any) -> None:
        heartbeat.watch(give_up)
        assert given_up.wait(60)
        status = TestClient(create_status_app(Status("run", 3, heartbeat)))
        answer = status.get("/healthz")
        assert (answer.status_code, "learning" in answer.text) == (503, True)
        raise InterruptedError

    monkeypatch.setattr(CountingTrainer, "learn", hang)
    with pytest.raises(InterruptedError):
        train([0, 1, 2, 3], heartbeat=heartbeat)
    assert "s in: learning 0/4 (run.stall_seconds = 0.05)" in stalled[0]


def test_verifying_a_large_checkpoint_file_by_file_is_no_hang(train, tmp_path, monkeypatch):
    """It takes nine times the limit, and loading takes most of it again."""
    now, stalled, checkpoint = 0.0, [], tmp_path / "000002"
    heartbeat = Heartbeat(100.0, lambda: now)

    def work() -> None:
        nonlocal now
        now += 90.0
        stalled.append(heartbeat.stalled)

    def search(self: Recorder) -> Iterator[Path | None]:
        for _ in range(10):
            work()
            yield None
        work()
        yield checkpoint

    def load(self: CountingTrainer, found: Path) -> Record:
        assert found == checkpoint
        work()
        return Record(step=2, policies={"2": "sha of 2"})

    monkeypatch.setattr(Recorder, "latest_checkpoint", search)
    monkeypatch.setattr(CountingTrainer, "load", load, raising=False)
    monkeypatch.setattr(Result, "sample", SimpleNamespace(policy_version=2, policy_sha256="sha of 2"))
    recorder = train([0, 1, 2, 3], heartbeat=heartbeat)
    assert stalled == [None] * 12
    assert recorder.calls[0] == "publish 2"


def test_with_staleness_a_step_is_open_while_the_one_before_it_is_trained(train):
    recorder = train([0, 1, 2, 3], "run.max_staleness=1")
    assert recorder.calls == [
        "publish 0", "open 0", "open 1", "evaluate 0",
        "optimizer step", "publish 1", "open 2", "line 0", "evaluate 1",
        "optimizer step", "publish 2", "line 1", "evaluate 2", "save 2, 8 used",
        "durable 2", "optimizer step", "publish 3", "line 2", "evaluate 3", "save 3, 12 used",
        "durable 3", "export", "end",
    ]  # fmt: skip
    assert [tickets[0].policy_version for tickets in recorder.tickets] == [0, 0, 1]
    assert all(ticket.newer_policy for tickets in recorder.tickets for ticket in tickets)


def test_a_deterministic_run_fixes_the_older_policy_of_a_step(train):
    recorder = train([0, 1, 2, 3], "run.max_staleness=2", "run.deterministic=true")
    assert [tickets[0].policy_version for tickets in recorder.tickets] == [0, 0, 0]
    assert not any(ticket.newer_policy for tickets in recorder.tickets for ticket in tickets)


def test_a_trajectory_of_other_weights_is_refused_before_it_is_learned_from(train, monkeypatch):
    """The version is right, the weights are not: as after a resume with another learning rate."""
    monkeypatch.setattr(Result, "sample", SimpleNamespace(policy_version=0, policy_sha256="other"))
    monkeypatch.setattr(Result, "ticket", SimpleNamespace(id="r/step-000000/0"), raising=False)
    monkeypatch.setattr(Result, "worker", "w", raising=False)
    learned: list[int] = []
    monkeypatch.setattr(CountingTrainer, "learn", lambda self, trajectories, plan: learned.extend(trajectories))
    with pytest.raises(StaleTrajectory, match="sampled by w from other weights than those published as policy 0"):
        train([0, 1, 2, 3])
    assert learned == []


def test_a_step_that_lacks_too_many_trajectories_ends_before_the_optimizer(train, monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(Recorder, "evaluate", lambda self, version: calls.append(f"evaluate {version}"))
    monkeypatch.setattr(CountingTrainer, "optimizer_step", lambda self, sums: calls.append("optimizer step"))
    with pytest.raises(TooFewTrajectories, match="step 1 lacks 3 of 4"):
        train([0])
    assert calls == ["evaluate 0"]
