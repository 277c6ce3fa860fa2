"""A collector that is stopped in the middle saves what it has scored."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

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


def test_a_stopped_collector_saves_the_rollouts_that_it_has_counted(tmp_path):
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
