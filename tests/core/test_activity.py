"""Busy, waiting and idle seconds of processes and roles."""

import time

import pytest

from calopd.core.activity import (
    Activities,
    Activity,
    ActivityClock,
    RoleSeconds,
    add_readings,
    busiest,
    role_seconds,
)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that clocks read, which the test sets."""
    current = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: current[0])
    return current


def reading(process: str, busy: float, waiting: float = 0.0, started: float = 1.0) -> Activity:
    return Activity(process, started, busy, waiting)


def readings(*found: Activity) -> Activities:
    activities: Activities = {}
    add_readings(activities, "rollout", found)
    return activities


def test_a_clock_tells_computing_from_waiting_and_counts_no_idle_time(now: list[float]) -> None:
    clock = ActivityClock("w")
    now[0] += 5  # nothing to do
    clock.hold(2)
    now[0] += 1
    with clock.computing():
        now[0] += 10
        clock.hold(1)
        now[0] += 10
    now[0] += 3
    clock.hold(0)
    now[0] += 7
    found = clock.read()
    assert (found.process, found.busy, found.waiting) == ("w", 20.0, 4.0)


def test_the_seconds_of_a_step_are_those_between_two_readings() -> None:
    before, after = readings(reading("a", 10, 2), reading("b", 20, 0)), readings(reading("a", 16, 3), reading("b", 28))
    found = role_seconds("rollout", before, after, seconds=10.0, processes=2)
    assert found == RoleSeconds(busy=7.0, waiting=0.5, idle=2.5)


def test_a_restarted_process_counts_from_zero() -> None:
    before, after = readings(reading("a", 100, started=1)), readings(reading("a", 4, 1, started=2))
    assert role_seconds("rollout", before, after, seconds=10.0, processes=1) == RoleSeconds(4.0, 1.0, 5.0)


def test_a_replica_that_sent_nothing_was_idle() -> None:
    found = role_seconds("rollout", {}, readings(reading("a", 8)), seconds=10.0, processes=2)
    assert found == RoleSeconds(busy=4.0, waiting=0.0, idle=6.0)


def test_a_reading_that_reaches_further_back_is_bounded_by_the_step() -> None:
    found = role_seconds("rollout", {}, readings(reading("a", 1_000, 500)), seconds=10.0, processes=1)
    assert found == RoleSeconds(busy=10.0, waiting=0.0, idle=0.0)


def test_the_newest_reading_of_a_process_counts_in_any_order() -> None:
    old, new, restarted = reading("a", 5), reading("a", 6), reading("a", 1, started=2)
    assert readings(new, old) == readings(old, new) == readings(new)
    assert readings(restarted, new, old) == readings(restarted)
    assert role_seconds("teacher", {}, readings(new), seconds=1.0, processes=1) is None


def test_the_busiest_role() -> None:
    assert busiest({"rollout": RoleSeconds(3, 0, 1), "teacher": RoleSeconds(1, 0, 3)}) == 3
    assert busiest({}) == 0
