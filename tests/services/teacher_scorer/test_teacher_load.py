"""More clients than the teacher has room for, cancellations, and SIGTERM in the middle of it."""

import asyncio
from contextlib import ExitStack

import pytest

from benchmarks.teacher_load import MAX_WAITING, run, verdict
from benchmarks.teacher_service import serving

pytestmark = pytest.mark.slow


def test_no_answer_is_lost_slots_come_back_and_a_replica_that_ends_answers_what_it_accepted(tiny):
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(serving(tiny.teacher, max_waiting=MAX_WAITING, max_tokens=1_024)) for _ in range(2)
        )
        load, memory = asyncio.run(run(first, second, seconds=4, clients=64, vocabulary=390))
        assert verdict(load, memory, second, first.exit_code(120)) == []
    assert load.outcomes["OK"] >= 70
    assert load.outcomes["own cancellation"] >= 10
