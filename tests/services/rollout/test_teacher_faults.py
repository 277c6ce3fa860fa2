"""A teacher that answers wrongly: nothing of it reaches the learner, and an alarm says so."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calopd.core.errors import UnhealthyTeacher
from calopd.transport import teacher_client
from calopd.transport.queue import Queue
from calopd.transport.teacher_client import MAX_REFUSALS, TeacherClient
from calopd.transport.teacher_pin import TeacherChecks
from calopd.transport.teacher_replica import TeacherReplica, refused_replicas
from services.rollout.server import pinned_in_run, wait_for_teacher
from services.rollout.worker import Worker
from services.teacher_scorer.engines.scoring_engine import SequenceToScore
from services.teacher_scorer.scheduler import Scheduler
from services.teacher_scorer.servicer import Servicer
from tests.ports import free_port
from tests.services.rollout.fake_engines import BATCH, FakeReader, FakeSampler, fake_worker, tickets
from tests.services.rollout.fake_teacher import CANARY_IDS, VOCABULARY, FakeTeacher, serving, true_scores
from tests.services.rollout.test_worker_faults import arrived, until
from tests.services.teacher_scorer.test_hung_teacher import LIMITS, FakeEngine

FAULTS = [
    "NaN",
    "-ln V",
    "the previous answer",
    "the previous answer under this id",
    "one token too few",
    "one byte too few",
    "another request's scores",
    "another model's",
]
CONTEXTS = ("c0", "eval+")


async def connected(queue: Queue, *addresses: str, every_seconds: float = 0.05) -> TeacherClient:
    client = TeacherClient(addresses, checks=TeacherChecks(CANARY_IDS, pinned_in_run(queue), every_seconds))
    await client.check_vocabulary(VOCABULARY)
    await client.check_replicas()
    return client


async def work_off(queue: Queue, folder: Path, client: TeacherClient, count: int) -> None:
    """Complete a batch of tickets."""
    worker = fake_worker(queue, FakeSampler(), FakeReader(folder), teacher=client)
    working = asyncio.create_task(worker.run())
    queue.open_batch(BATCH, tickets(count, contexts=CONTEXTS))
    await until(lambda: len(arrived(queue)) == count)
    working.cancel()
    worker.sampler.stop()


def is_refused(teacher: FakeTeacher) -> bool:
    return refused_replicas.labels(teacher.address)._value.get() == 1


def audit(queue: Queue, batch: str, count: int) -> None:
    """Every token that a learner could read has the score of the run's teacher for that token of that request."""
    results = queue.results(batch, range(count))
    assert len(results) == count
    for trajectory in results:
        expected = true_scores(trajectory.prompt_ids, trajectory.sample.response_ids)
        assert trajectory.scores is not None
        assert trajectory.scores.names == CONTEXTS
        assert np.array_equal(trajectory.scores.logprobs, np.stack([expected, expected]))


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_of_a_teacher_that_turns_bad_reaches_the_learner(queue, tmp_path, fault):
    teacher = FakeTeacher()
    workers: list[Worker] = []

    async def watch() -> None:
        async with serving(teacher):
            client = await connected(queue, teacher.address)
            workers.append(fake_worker(queue, FakeSampler(), FakeReader(tmp_path), teacher=client))
            working = asyncio.create_task(workers[0].run())
            queue.open_batch("step-000000", tickets(8, "step-000000", contexts=CONTEXTS))
            await until(lambda: len(arrived(queue, "step-000000")) == 8)
            teacher.fault = fault
            queue.open_batch(BATCH, tickets(8, contexts=CONTEXTS))
            await until(lambda: is_refused(teacher))
            assert arrived(queue) == set()
            teacher.fault = ""
            await until(lambda: len(arrived(queue)) == 8)
            assert not is_refused(teacher)
            working.cancel()
            await client.close()

    asyncio.run(watch())
    workers[0].sampler.stop()
    audit(queue, "step-000000", 8)
    audit(queue, BATCH, 8)
    assert queue.dead_letters() == []


@pytest.mark.parametrize("fault", FAULTS)
def test_the_alarm_comes_within_a_canary_period_also_without_work(queue, fault):
    teacher = FakeTeacher()

    async def watch() -> None:
        async with serving(teacher):
            client = await connected(queue, teacher.address)
            assert not is_refused(teacher)
            teacher.fault = fault
            await until(lambda: is_refused(teacher))
            await client.close()

    asyncio.run(watch())


def test_the_watch_of_the_replicas_goes_on_after_an_unexpected_error(queue, monkeypatch, caplog):
    teacher = FakeTeacher()
    check, failed = TeacherReplica.check, asyncio.Event()

    async def fail_once(self: TeacherReplica, vocabulary: Sequence[str]) -> None:
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError("a defect")
        await check(self, vocabulary)

    async def watch() -> None:
        async with serving(teacher):
            client = await connected(queue, teacher.address)
            monkeypatch.setattr(TeacherReplica, "check", fail_once)
            async with asyncio.timeout(60):
                await failed.wait()
            teacher.fault = "NaN"
            await until(lambda: is_refused(teacher))
            await client.close()

    asyncio.run(watch())
    assert "could not be checked" in caplog.text


class PoisonedEngine(FakeEngine):
    """NaN for the response of ticket 2."""

    def reference(self, sequence: SequenceToScore) -> np.ndarray:
        row = super().reference(sequence)
        return row * np.nan if (sequence.response_ids == 11).all() else row


class RealTeacher(Servicer):
    """The real service, which checks the scores of its engine itself."""

    def __init__(self) -> None:
        engine: Any = PoisonedEngine()
        super().__init__(engine, Scheduler(engine, batch_tokens=512, max_waiting=64), VOCABULARY, LIMITS)
        self.address = f"127.0.0.1:{free_port()}"


@pytest.mark.parametrize("of", [FakeTeacher, RealTeacher])
def test_a_response_whose_scores_are_refused_again_and_again_is_dead_lettered(queue, tmp_path, monkeypatch, of):
    """The teacher scores the canary and the other responses right."""
    monkeypatch.setattr(TeacherClient, "_pause", lambda self, attempt, reason, details: asyncio.sleep(0))
    teacher = of()
    teacher.poison = "/2"

    async def watch() -> None:
        async with serving(teacher):
            client = await connected(queue, teacher.address)
            await work_off(queue, tmp_path, client, 4)
            assert not is_refused(teacher)
            await client.close()

    asyncio.run(watch())
    ((dead, reason),) = queue.dead_letters()
    assert dead.index == 2
    assert f"refused {MAX_REFUSALS} times" in reason
    assert "NaN" in reason


@pytest.mark.parametrize("wrong", ["another model's", "revision"])
def test_every_replica_behind_a_name_is_compared_with_the_teacher_of_the_run(queue, tmp_path, monkeypatch, wrong):
    """The bad one is bad from its start: its scores are finite, and it agrees with itself."""
    good, bad = FakeTeacher(), FakeTeacher()
    monkeypatch.setattr(teacher_client, "single_addresses", lambda name: [good.address, bad.address])

    async def watch() -> None:
        async with serving(good, bad):
            await (await connected(queue, good.address)).close()  # the first contact of the run
            if wrong == "revision":
                bad.revision = "another revision"
            else:
                bad.fault = wrong
            client = await connected(queue, "teacher:50051", every_seconds=1e6)
            assert client.refused.keys() == {bad.address}
            await work_off(queue, tmp_path, client, 8)
            await client.close()

    asyncio.run(watch())
    audit(queue, BATCH, 8)


def test_a_rollout_starts_and_works_while_one_of_its_teachers_is_down(queue, tmp_path, caplog):
    teacher, down = FakeTeacher(), f"127.0.0.1:{free_port()}"

    async def watch() -> None:
        async with serving(teacher), asyncio.timeout(60):
            checks = TeacherChecks(CANARY_IDS, pinned_in_run(queue), every_seconds=1e6)
            client = TeacherClient([down, teacher.address], checks=checks)
            await wait_for_teacher(client, VOCABULARY)
            await work_off(queue, tmp_path, client, 8)
            await client.close()

    asyncio.run(watch())
    audit(queue, BATCH, 8)
    assert f"the teacher at {down} does not answer" in caplog.text


def test_a_rollout_that_waits_for_its_teacher_says_so(queue, caplog):
    teacher = FakeTeacher()

    async def watch() -> None:
        checks = TeacherChecks(CANARY_IDS, pinned_in_run(queue), every_seconds=1e6)
        client = TeacherClient([teacher.address], checks=checks)
        waiting = asyncio.create_task(wait_for_teacher(client, VOCABULARY))
        await until(lambda: "waiting for the teacher: UNAVAILABLE" in caplog.text)
        async with serving(teacher), asyncio.timeout(60):
            await waiting
            await client.close()

    asyncio.run(watch())


@pytest.mark.parametrize("one_is_down", [False, True])
def test_a_run_keeps_its_teacher_when_all_replicas_are_replaced_by_another_model(queue, one_is_down):
    first, second = FakeTeacher(), FakeTeacher()
    down = [f"127.0.0.1:{free_port()}"] if one_is_down else []
    second.fault = "another model's"

    async def watch() -> None:
        async with serving(first, second):
            await (await connected(queue, first.address)).close()
            with pytest.raises(UnhealthyTeacher, match="deviate from those that are pinned in the run"):
                await connected(queue, second.address, *down)

    asyncio.run(watch())
