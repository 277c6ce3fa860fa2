"""The share of a step that a rollout claims."""

import pytest

from services.rollout.step_share import WHOLE_STEP, StepShare


@pytest.mark.parametrize(("workers", "share"), [(1, 64), (2, 64), (4, 64), (8, 32), (100, 3)], ids="{} workers".format)
def test_workers_share_a_step_equally_and_leave_work_for_those_that_are_starting(workers: int, share: int) -> None:
    assert StepShare(256, replicas=4).of(workers) == share


def test_a_worker_alone_takes_what_its_engine_has_room_for() -> None:
    assert WHOLE_STEP.of(1) > 10**6
