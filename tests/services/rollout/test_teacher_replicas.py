"""Several replicas of a teacher: one that is frozen, a name that does not resolve, an address that is gone."""

import asyncio

import numpy as np
import pytest

from calopd.transport import teacher_client
from calopd.transport.replicas import ReplicaError
from calopd.transport.teacher_replica import TeacherReplica
from tests.services.rollout.fake_engines import BATCH
from tests.services.rollout.fake_teacher import FakeTeacher, serving, true_scores
from tests.services.rollout.test_teacher_faults import audit, connected, is_refused, work_off
from tests.services.rollout.test_worker_faults import until


def test_a_replica_that_is_frozen_does_not_delay_the_alarm_of_another_one(queue):
    frozen, bad = FakeTeacher(), FakeTeacher()

    async def watch() -> None:
        async with serving(frozen, bad):
            client = await connected(queue, frozen.address, bad.address)
            frozen.fault = "frozen"
            await until(lambda: frozen.address in client._checking)
            await asyncio.sleep(0.2)  # several canary periods
            bad.fault = "NaN"
            await until(lambda: is_refused(bad))
            bad.fault = ""
            await until(lambda: not is_refused(bad))
            frozen.fault = ""
            await client.close()

    asyncio.run(watch())


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses behind every name; none = it does not resolve."""
    found: list[str] = []

    def resolve(name: str) -> list[str]:
        if not found:
            raise ReplicaError("UNAVAILABLE", "no such name")
        return list(found)

    monkeypatch.setattr(teacher_client, "RESOLVE_SECONDS", 0.0)
    monkeypatch.setattr(teacher_client, "single_addresses", resolve)
    return found


def test_a_name_that_does_not_resolve_for_a_while_keeps_its_replicas(queue, tmp_path, behind):
    teacher = FakeTeacher()
    behind[:] = [teacher.address]

    async def watch() -> None:
        async with serving(teacher), asyncio.timeout(60):
            client = await connected(queue, "teacher:50051", every_seconds=1e6)
            behind.clear()
            await work_off(queue, tmp_path, client, 8)
            assert client._replicas.keys() == {teacher.address}
            await client.close()

    asyncio.run(watch())
    audit(queue, BATCH, 8)


def test_a_call_to_a_replica_whose_address_has_just_gone_goes_to_another_one(queue, monkeypatch, behind):
    first, second = FakeTeacher(), FakeTeacher()
    behind[:] = [first.address]
    response = np.arange(5, dtype=np.int32)

    async def watch() -> None:
        async with serving(first, second), asyncio.timeout(60):
            client = await connected(queue, "teacher:50051", every_seconds=1e6)
            choose, chosen = client._choose, [await client._choose()]
            behind[:] = [second.address]
            await client._all()
            await asyncio.sleep(0)  # the channel closes

            async def chosen_before() -> TeacherReplica:
                return chosen.pop() if chosen else await choose()

            monkeypatch.setattr(client, "_choose", chosen_before)
            scores = await client.score("t", response, {"c0": response})
            assert np.array_equal(scores.logprobs[0], true_scores(response, response))
            await client.close()

    asyncio.run(watch())
