"""A collector that is stopped in the middle saves what it has scored."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from calopd.core.environment import PROGRESS_FILE
from calopd.core.types import Problem
from calopd.study.collection import Goal
from calopd.study.recorded_rollouts import Response
from calopd.study.shards import Study
from services.rollout.jobs.collect import Collector, Share

PROBLEM = Problem("p", "1 + 1?", "2")
CONTEXTS = ["c0", "eval+"]


class ThreeResponses:
    """Three responses; a fourth one never comes."""

    def __init__(self, all_given: asyncio.Event) -> None:
        self._all_given = all_given

    async def get(self, index: int) -> Response:
        if index >= 3:
            self._all_given.set()
            await asyncio.Event().wait()
        return Response(PROBLEM, np.array([1, 2]), np.array([-1.0, -1.0], np.float32), True, False)


class Teacher:
    async def score(self, name: str, ids: np.ndarray, contexts: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(logprobs=np.full((len(contexts), len(ids)), -1.0, np.float32))


def test_a_stopped_collector_saves_the_rollouts_that_it_has_counted(tmp_path, monkeypatch):
    monkeypatch.setenv(PROGRESS_FILE.name, str(tmp_path / "progress"))
    study = Study(tmp_path / "study")
    study.begin(contexts=CONTEXTS)
    goal = Goal(tokens=None, rollouts=10, shard_tokens=10**9, flush_seconds=1e9)
    prompts: Any = SimpleNamespace(ids=lambda problem, context: np.array([0]))

    async def stopped() -> None:
        all_given = asyncio.Event()
        teacher: Any = Teacher()
        collector = Collector(study, Share(0, 1), goal, ThreeResponses(all_given), teacher, prompts)
        running = asyncio.create_task(collector.run(in_flight=1))
        await all_given.wait()
        assert not study.shards
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(stopped())
    assert [rollout.index for _, _, rollout in study.rollouts()] == [0, 1, 2]
    assert '"rollouts": 3' in study.files.progress(0).read_text()
    assert (tmp_path / "progress").exists(), "a kill from outside after it is no failure to start"


def test_a_stop_in_the_middle_of_a_flush_waits_for_the_shard(tmp_path, monkeypatch):
    """The process ends right after the collector, and with it the thread that writes."""
    study = Study(tmp_path / "study")
    study.begin(contexts=CONTEXTS)
    goal = Goal(tokens=None, rollouts=10, shard_tokens=1, flush_seconds=1e9)
    prompts: Any = SimpleNamespace(ids=lambda problem, context: np.array([0]))
    writing, resumed = threading.Event(), threading.Event()
    write = study.write_shard

    def slow_write(*arguments: Any) -> None:
        writing.set()
        assert resumed.wait(30)
        write(*arguments)

    monkeypatch.setattr(study, "write_shard", slow_write)

    async def stopped() -> None:
        teacher: Any = Teacher()
        collector = Collector(study, Share(0, 1), goal, ThreeResponses(asyncio.Event()), teacher, prompts)
        running = asyncio.create_task(collector.run(in_flight=1))
        await asyncio.to_thread(writing.wait)
        running.cancel()
        threading.Timer(0.2, resumed.set).start()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert [rollout.index for _, _, rollout in study.rollouts()] == [0]

    asyncio.run(stopped())
