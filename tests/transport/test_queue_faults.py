"""The queue when entries are damaged, servers lose data or fill up, and learners come twice."""

from dataclasses import replace

import pytest
import redis

from calopd.core.errors import ConfigError, LearnerReplaced
from calopd.local.entry_point import TEMPORARY_EXIT, describe_failure
from calopd.transport.queue import open_queue
from calopd.transport.redis_queue import GROUP
from calopd.transport.redis_runs import delete_run, stored_runs
from services.learner import batching
from services.learner.batching import DynamicBatcher, assignments
from tests.transport.batches import BATCH, arrived
from tests.transport.test_redis_queue import ticket, trajectory


def test_of_two_learners_the_later_one_works_and_the_earlier_one_is_refused(redis_server, queue):
    """The lock of the run directory did not hold."""
    earlier, later = (open_queue(redis_server.url, "r") for _ in range(2))
    first = earlier.lead("host")
    earlier.open_batch(BATCH, [ticket(0)])
    (claim,) = queue.claim("w", 9)
    assert claim.ticket.epoch == first
    assert later.lead("host") > first
    for change in (
        lambda: earlier.open_batch("step-000001", [ticket(0, "step-000001")]),
        lambda: earlier.release_batch(BATCH),
        lambda: earlier.announce_policy(7, "sha"),
        lambda: earlier.reissue(BATCH, [ticket(0)]),
        earlier.stay_leader,
    ):
        with pytest.raises(LearnerReplaced, match="another learner works on the run r: this one stops"):
            change()
    assert later.open_batches() == [BATCH]
    assert queue.commit(claim, trajectory(claim.ticket)), "its tickets are those that the later learner wants, too"
    later.release_batch(BATCH)
    assert later.open_batches() == []


def test_a_server_that_forgot_the_learner_is_reminded(redis_server, queue):
    """It lost its last second. The earlier learner must not come back through that."""
    earlier, later = (open_queue(redis_server.url, "r") for _ in range(2))
    earlier.lead("host")
    later.lead("host")
    queue.client.delete("calopd:r:learner")
    later.stay_leader()
    with pytest.raises(LearnerReplaced):
        earlier.release_batch(BATCH)


def test_a_learner_on_another_host_is_refused_while_the_first_one_is_alive(redis_server, queue):
    one, other = (open_queue(redis_server.url, "r") for _ in range(2))
    one.lead("here")
    with pytest.raises(ConfigError, match="another learner works on the run r"):
        other.lead("there", wait_seconds=0.0)
    one.stay_leader()
    queue.client.hset("calopd:r:learner", "seen", 1)  # silent for long
    other.lead("there", wait_seconds=0.0)
    with pytest.raises(LearnerReplaced):
        one.stay_leader()


def test_a_late_result_of_an_earlier_epoch_is_dropped_though_its_entry_exists(redis_server, queue):
    """As if a server had lost the withdrawal of an entry, but not the release of its batch."""
    learner = open_queue(redis_server.url, "r")
    learner.lead("host")
    learner.open_batch(BATCH, [ticket(0)])
    (late,) = queue.claim("slow", 1)
    learner.lead("host")
    learner.release_batch(BATCH)
    learner.open_batch(BATCH, [replace(ticket(0), policy_sha256="other weights")])
    (entry,) = queue.client.xrange("calopd:r:tickets")
    assert not queue.commit(replace(late, entry=entry[0].decode()), trajectory(late.ticket))
    assert arrived(queue) == set()


def test_a_full_server_takes_results_and_says_what_to_do(queue):
    """What was promised can be kept, and what makes room; new tickets are refused until there is some."""
    queue.lead("host")
    queue.open_batch(BATCH, [ticket(0)])
    queue.open_batch("step-000002", [ticket(0, "step-000002")])
    (claim, _) = queue.claim("a", 2)
    queue.pin("teacher", b"1")
    queue.client.config_set("maxmemory", "1")
    try:
        assert queue.commit(claim, trajectory(claim.ticket))
        queue.stay_leader()
        queue.lead("host")
        assert queue.pin("teacher", b"2") == b"1"
        queue.announce_policy(1, "sha")
        queue.release_batch("step-000002")
        with pytest.raises(redis.exceptions.OutOfMemoryError) as full:
            queue.open_batch("step-000001", [ticket(0, "step-000001")])
    finally:
        queue.client.config_set("maxmemory", "0")
    failure = describe_failure(full.value)
    assert failure is not None
    assert (failure.code, "`calopd gc CONFIG --delete`" in failure.message) == (TEMPORARY_EXIT, True)
    assert queue.open_batches() == [BATCH], "nothing was opened by half"
    assert queue.open_batch("step-000001", [ticket(0, "step-000001")])


@pytest.mark.parametrize("loss", ["everything", "the last second", "the clock was set back"])
def test_a_step_goes_on_after_the_server_lost_data(queue, monkeypatch, loss):
    monkeypatch.setattr(batching, "REOPEN_AFTER", 1)
    monkeypatch.setattr(batching, "BLOCK_SECONDS", 0.01)
    tickets = [ticket(i) for i in range(3)]
    queue.open_batch(BATCH, tickets)
    batcher = DynamicBatcher(3, max_tokens=99)
    rounds = assignments(queue, BATCH, tickets, batcher)
    first, second, _ = queue.claim("a", 3)
    queue.commit(first, trajectory(first.ticket))
    assert next(rounds) == [[0]]
    if loss == "everything":
        queue.client.flushall()
        queue.join()
    elif loss == "the last second":  # the ticket of index 1 is gone, and so is its result
        queue.client.xdel("calopd:r:tickets", second.entry)
    else:
        queue.commit(second, trajectory(second.ticket))
        queue.client.delete(f"calopd:r:arrivals:{BATCH}")
        queue.client.xadd(f"calopd:r:arrivals:{BATCH}", {"i": 1, "n": 12}, id="1-1")
    seen: set[int] = {0}
    for found in rounds:
        seen |= set(found[0] if found else ())
        for claim in (*queue.claim("b", 9, block_seconds=0.001), *queue.claim_abandoned("b", 9, idle_seconds=0)):
            queue.commit(claim, trajectory(claim.ticket))
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("done", [False, True])
def test_a_refused_result_is_issued_again_once_however_often_arrivals_are_read(queue, monkeypatch, done):
    monkeypatch.setattr(batching, "REOPEN_AFTER", 1)
    monkeypatch.setattr(batching, "BLOCK_SECONDS", 0.01)
    tickets = [ticket(i) for i in range(2)]
    queue.open_batch(BATCH, tickets)
    rounds = assignments(
        queue, BATCH, tickets, DynamicBatcher(2, max_tokens=99), lambda arrival: arrival.policy_sha256 != "other"
    )
    first, second = queue.claim("a", 2)
    queue.commit(first, trajectory(first.ticket))
    other = trajectory(second.ticket)
    queue.commit(second, replace(other, sample=replace(other.sample, policy_sha256="other")))
    assert next(rounds) == [[0]]
    (again,) = queue.claim("a", 9)
    assert [next(rounds), next(rounds)] == [None, None], "it has read what was withdrawn, and opens the batch again"
    if done:
        assert queue.commit(again, trajectory(again.ticket))
    for _ in range(0 if done else 3):
        assert next(rounds) is None
    assert queue.claim("a", 9, 0.001) == [], "no copies"
    assert done or queue.commit(again, trajectory(again.ticket))
    assert [found for found in rounds if found] == [[[1]]]
    assert [t.ticket.index for t in queue.results(BATCH, [0, 1])] == [0, 1]


def test_dead_letters_are_issued_again_all_or_some(queue):
    queue.open_batch(BATCH, [ticket(i) for i in range(4)])
    queue.open_batch("step-000001", [ticket(0, "step-000001")])
    for claim in queue.claim("a", 9):
        queue.count_attempt(claim, "failed")
        queue.dead_letter(claim, "too long")
    assert queue.retry_dead_letters([ticket(2).id]) == [ticket(2)]
    assert arrived(queue) == {0, 1, 3}
    queue.release_batch("step-000001")
    assert [t.index for t in queue.retry_dead_letters()] == [0, 1, 3]
    assert arrived(queue) == set()
    claims = queue.claim("a", 9)
    assert sorted(claim.ticket.index for claim in claims) == [0, 1, 2, 3]
    assert [queue.count_attempt(claim, "failed", 0) for claim in claims] == [0, 0, 0, 0]
    assert all(queue.commit(claim, trajectory(claim.ticket)) for claim in claims)
    batcher = DynamicBatcher(4, max_tokens=99, deterministic=True)
    batcher.add(queue.arrivals(BATCH))
    assert batcher.complete
    assert [t.batch for t, _ in queue.dead_letters()] == ["step-000001"], "kept for the record"


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_dead_letter_that_is_retried_within_its_step_is_learned_from(queue, deterministic):
    tickets = [ticket(i) for i in range(3)]
    queue.open_batch(BATCH, tickets)
    rounds = assignments(queue, BATCH, tickets, DynamicBatcher(3, max_tokens=99, deterministic=deterministic))
    first, second, third = queue.claim("a", 3)
    queue.dead_letter(first, "a file was missing")
    queue.commit(second, trajectory(second.ticket))
    learned = [index for round_ in [next(rounds)] if round_ for index in round_[0]]
    queue.retry_dead_letters()
    (again,) = queue.claim("a", 9)
    queue.commit(again, trajectory(again.ticket))
    queue.commit(third, trajectory(third.ticket))
    learned += [index for round_ in rounds if round_ for index in round_[0]]
    assert sorted(learned) == [0, 1, 2]


def test_attempts_are_counted_until_there_is_a_result(queue):
    queue.open_batch(BATCH, [ticket(0)])
    (claim,) = queue.claim("a", 1)
    assert [queue.count_attempt(claim, "alone"), queue.count_attempt(claim, "alone")] == [1, 2]
    assert queue.count_attempt(claim, "failed") == 1
    queue.give_back(claim)
    (claim,) = queue.claim("a", 1)
    assert (queue.deliveries(claim), queue.count_attempt(claim, "alone", 0)) == (1, 2)
    queue.commit(claim, trajectory(claim.ticket))
    queue.release_batch(BATCH)
    assert queue.count_attempt(claim, "failed") == 0
    assert not any(b"attempts" in key for key in queue.client.scan_iter())


def test_abandoned_runs_are_found_and_deleted(redis_server, queue):
    queue.open_batch(BATCH, [ticket(0)])
    other = open_queue(redis_server.url, "other-1a2b")
    other.lead("host")
    queue.client.set("of somebody else", "1")
    runs = {stored.run: stored for stored in stored_runs(queue.client)}
    assert runs.keys() == {"r", "other-1a2b"}
    assert all(stored.idle_seconds < 600 for stored in runs.values())
    queue.client.hset("calopd:other-1a2b:learner", "seen", 1)
    assert stored_runs(queue.client)[0].idle_seconds > 1e6
    assert delete_run(queue.client, "other-1a2b") == 1
    assert [stored.run for stored in stored_runs(queue.client)] == ["r"]
    assert queue.client.get("of somebody else") == b"1"
    assert queue.client.xinfo_groups("calopd:r:tickets")[0]["name"] == GROUP.encode()
