"""A worker whose engine hangs or crashes, or that cannot read policies: others get its tickets, none is lost."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from fastapi.testclient import TestClient

from calopd.config.sections import MethodSection
from calopd.core.errors import EngineFailed
from calopd.core.heartbeat import Heartbeat
from calopd.core.types import Sampling
from calopd.local.entry_point import RESTART_EXIT
from calopd.transport.queue import Queue, arrived_indices
from services.rollout import loaded_policy
from services.rollout.app import create_app
from services.rollout.engines.sampling_engine import SampleRequest
from services.rollout.sampler import SamplingLoop
from services.rollout.worker import CRASHES_ALONE, Worker
from tests.services.rollout.fake_engines import BATCH, FakeReader, FakeSampler, fake_worker, tickets


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.01)


def arrived(queue: Queue, batch: str = BATCH) -> set[int]:
    return arrived_indices(queue.arrivals(batch, block_seconds=0.001))


def status(worker: Worker, path: str) -> tuple[int, str]:
    answer = TestClient(create_app(worker, MethodSection(), 8, "run")).get(path)
    return answer.status_code, answer.text


class Clock:
    """Time that passes when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_hung_engine_loses_its_tickets_and_its_health(queue, tmp_path):
    clock, engine = Clock(), FakeSampler()
    heartbeat = Heartbeat(100.0, clock)
    worker = fake_worker(queue, engine, FakeReader(tmp_path), heartbeat=heartbeat, lease_seconds=1.0)

    async def watch() -> None:
        working = asyncio.create_task(worker.run())
        queue.open_batch("step-000000", tickets(4, "step-000000"))
        await until(lambda: len(arrived(queue, "step-000000")) == 4)
        steps = len(engine.together)
        engine.hangs.set()
        queue.open_batch(BATCH, tickets(4))
        await until(lambda: queue.depth().claimed == 4 and len(engine.together) > steps)
        clock.now = 60.0
        assert status(worker, "/healthz")[0] == 200
        await until(lambda: heartbeat._started[worker][1] == 60.0)  # the event loop is alive, and shows it
        clock.now = 120.0
        for path in ("/healthz", "/readyz"):
            code, text = status(worker, path)
            assert (code, "no progress for 120 s in: a step of the sampling engine with" in text) == (503, True)
        taken: list[int] = []

        def others() -> bool:
            taken.extend(claim.ticket.index for claim in queue.claim_abandoned("other", 9, idle_seconds=1.0))
            return len(taken) == 4

        await until(others)
        queue.open_batch("step-000002", tickets(4, "step-000002"))
        assert len(queue.claim("other", 9)) == 4, "a hung worker claims nothing"
        working.cancel()

    asyncio.run(watch())
    engine.goes_on.set()
    worker.sampler.stop()


def test_an_engine_that_takes_many_steps_does_not_hang():
    """Nothing is finished for ten times the limit, but every step ends in time."""
    clock, engine = Clock(), FakeSampler()
    heartbeat = Heartbeat(100.0, clock)
    stalled: list[str | None] = []
    complete = engine.step

    def step() -> list[Any]:
        stalled.append(heartbeat.stalled)
        clock.now += 90.0
        return complete() if clock.now > 1000 else []

    engine.step = step  # type: ignore[method-assign]
    loop = SamplingLoop(cast(Any, engine), "w", heartbeat)
    loop.sample(SampleRequest(np.array([3], np.int32), Sampling(), seed=0)).result(60)
    loop.stop()
    assert stalled == [None] * 12


def test_a_process_that_hangs_exits_with_a_clear_last_line():
    """Another thread holds it, as an engine does that waits for a GPU."""
    code = (
        "import logging, threading; from calopd.core.heartbeat import Heartbeat\n"
        "from calopd.local import stalled_process\n"
        "logging.basicConfig(); stalled_process.GRACE_SECONDS = 0.0; heartbeat = Heartbeat(0.05)\n"
        "stalled_process.exit_when_stalled(heartbeat, lambda reason: print('refused'))\n"
        "with heartbeat.work('a batch of 3 sequences'): threading.Event().wait()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == RESTART_EXIT
    last = done.stderr.splitlines()[-1]
    assert "in: a batch of 3 sequences (run.stall_seconds = 0.05): exiting with code 70" in last


def test_one_ticket_that_crashes_the_engine_is_dead_lettered_alone(queue, tmp_path):
    """Sixteen are in flight. Every crash ends the process, and the worker is started again under its name."""
    queue.open_batch(BATCH, tickets(16))
    crashes = 0
    reasons: set[str] = set()
    alone: list[bool] = []

    async def life() -> None:
        engine = FakeSampler(poison=7)
        worker = fake_worker(queue, engine, FakeReader(tmp_path))
        working = asyncio.create_task(worker.run())
        done = asyncio.create_task(until(lambda: len(arrived(queue)) == 16))
        await asyncio.wait((working, done), return_when=asyncio.FIRST_COMPLETED)
        alone.extend(count == 1 for count in engine.together)
        done.cancel()
        working.cancel()
        try:
            await working
        except asyncio.CancelledError:
            worker.sampler.stop()

    while len(arrived(queue)) < 16:
        assert crashes < 10
        try:
            asyncio.run(life())
        except EngineFailed as error:
            reasons.add(str(error))
            crashes += 1
    assert reasons == {"the sampling engine failed: RuntimeError: CUDA error: device-side assert triggered"}
    ((dead, reason),) = queue.dead_letters()
    assert dead.index == 7
    assert f"ended {CRASHES_ALONE} times, crashed or killed, while it sampled this response alone" in reason
    assert crashes == 2 + CRASHES_ALONE
    assert any(alone)
    assert not any(b"attempts" in key for key in queue.client.scan_iter())


def test_a_ticket_that_was_killed_twice_from_outside_is_sampled_alone_and_succeeds(queue, tmp_path):
    queue.open_batch(BATCH, tickets(4))
    for _ in range(2):
        queue.own_claims("w") or queue.claim("w", 4)  # two lives that ended at once
    engine = FakeSampler()
    worker = fake_worker(queue, engine, FakeReader(tmp_path))

    async def watch() -> None:
        working = asyncio.create_task(worker.run())
        await until(lambda: len(arrived(queue)) == 4)
        working.cancel()

    asyncio.run(watch())
    worker.sampler.stop()
    assert engine.together == [1, 1, 1, 1]
    assert queue.dead_letters() == []


def test_a_late_result_of_a_ticket_that_has_one_is_dropped_and_named(queue, tmp_path, caplog):
    engine = FakeSampler()
    worker = fake_worker(queue, engine, FakeReader(tmp_path))
    engine.hangs.set()
    queue.open_batch(BATCH, tickets(1))

    async def watch() -> None:
        working = asyncio.create_task(worker.run())
        await until(lambda: engine.together)
        (taken,) = queue.claim_abandoned("other", 1, idle_seconds=0)
        assert queue.dead_letter(taken, "by another worker")
        engine.goes_on.set()
        await until(lambda: not worker._active)
        working.cancel()

    with caplog.at_level(logging.INFO):
        asyncio.run(watch())
    worker.sampler.stop()
    assert f"the result of ticket r/{BATCH}/0 was dropped" in caplog.text


@pytest.mark.parametrize("batch", [BATCH, "eval-000001"])
def test_a_worker_that_is_asked_to_stop_gives_its_tickets_back(queue, tmp_path, batch):
    """It has not failed at them: they are free at once, and as if they had never been claimed."""
    engine = FakeSampler()
    worker = fake_worker(queue, engine, FakeReader(tmp_path), lease_seconds=1e6)
    engine.hangs.set()
    queue.open_batch(batch, tickets(4, batch))

    async def watch() -> None:
        working = asyncio.create_task(worker.run())
        await until(lambda: len(worker._active) == 4 and engine.together)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(watch())
    engine.goes_on.set()
    worker.sampler.stop()
    claims = [*queue.claim("other", 9, 0.001), *queue.claim_evaluations("other", 9)]
    assert sorted(claim.ticket.index for claim in claims) == [0, 1, 2, 3]
    assert [queue.deliveries(claim) for claim in claims] == [1, 1, 1, 1]


def test_a_replica_that_cannot_read_policies_leaves_the_step_to_the_others(queue, tmp_path, monkeypatch):
    monkeypatch.setattr(loaded_policy, "PAUSE_SECONDS", 0.001)
    volume = FakeReader(tmp_path, mounted=False)
    blind = fake_worker(queue, FakeSampler(), volume, name="blind")
    sound = fake_worker(queue, FakeSampler(), FakeReader(tmp_path), name="sound", lease_seconds=1e6)

    async def watch() -> None:
        queue.open_batch(BATCH, tickets(32))
        first = asyncio.create_task(blind.run())
        await until(lambda: blind.policy.unreadable is not None and not blind._active)
        assert queue.depth().claimed == 0, "it gave its claims back"
        code, text = status(blind, "/readyz")
        assert (code, "no policy at" in text) == (503, True)
        second = asyncio.create_task(sound.run())
        await until(lambda: len(arrived(queue)) == 32)
        assert {t.worker for t in queue.results(BATCH, range(32))} == {"sound"}
        second.cancel()
        volume.mounted = True
        queue.announce_policy(1, "sha of 1")
        await until(lambda: status(blind, "/readyz")[0] == 200)
        queue.open_batch("step-000002", tickets(4, "step-000002"))
        await until(lambda: len(arrived(queue, "step-000002")) == 4)
        first.cancel()

    asyncio.run(watch())
    for worker in (blind, sound):
        worker.sampler.stop()
    assert queue.dead_letters() == []


def test_a_ticket_of_a_lost_policy_is_dead_lettered_by_a_replica_that_can_read_others(queue, tmp_path, monkeypatch):
    """The policy of an old evaluation is gone; the newest one is there."""
    monkeypatch.setattr(loaded_policy, "PAUSE_SECONDS", 0.001)

    class Pruned(FakeReader):
        def fetch(self, version: int, sha256: str | None = None) -> Any:
            return super().fetch(version, sha256) if version == 2 else FakeReader(tmp_path, False).fetch(version)

    worker = fake_worker(queue, FakeSampler(), Pruned(tmp_path), max_failures=3)
    queue.announce_policy(2, "sha of 2")
    queue.open_batch("eval-000001", tickets(1, "eval-000001"))

    async def watch() -> None:
        working = asyncio.create_task(worker.run())
        await until(lambda: arrived(queue, "eval-000001") == {0})
        working.cancel()

    asyncio.run(watch())
    worker.sampler.stop()
    ((_, reason),) = queue.dead_letters()
    assert "failed 3 times" in reason
    assert "no policy at" in reason
