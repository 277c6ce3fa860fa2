"""The queue against real servers: everything counts once, whoever dies."""

import dataclasses
import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from calopd.core.types import Sample, Sampling, ScoreOptions, Scores, Ticket, TopK, Trajectory
from calopd.local import embedded_redis
from calopd.transport.queue import Announcement, Claim, Depth, open_queue
from calopd.transport.redis_queue import GROUP, RedisQueue
from services.learner.resource_collector import ResourceCollector


def ticket(index: int, batch: str = "step-000000") -> Ticket:
    return Ticket(
        run="r", batch=batch, index=index, problem_id=f"p{index}", sample=0, seed=2**40 + index, policy_version=3,
        sampling=Sampling(0.7, 0.9, 50), contexts=("c0", "eval+"), score_options=ScoreOptions(2, want_entropy=True),
    )  # fmt: skip


def trajectory(ticket_: Ticket, worker: str = "w", length: int = 5) -> Trajectory:
    draw = np.random.default_rng(ticket_.index)
    return Trajectory(
        ticket=ticket_,
        prompt_ids=np.arange(7, dtype=np.int32),
        sample=Sample(np.arange(length, dtype=np.int32), -draw.random(length, np.float32), False, 3, 0.25),
        scores=Scores(
            ("c0", "eval+"),
            -draw.random((2, length), np.float32),
            "rev",
            0.5,
            TopK(np.arange(2 * length, dtype=np.int32).reshape(length, 2), -draw.random((length, 2), np.float32)),
            draw.random(length, np.float32),
        ),
        correct=True,
        answered_after_think=False,
        sampler="s",
        worker=worker,
    )


@pytest.fixture
def queue(redis_server):
    queue = open_queue(redis_server.url, "r")
    queue.join()
    queue.join()
    return queue


def test_a_trajectory_comes_back_as_it_went_in(queue):
    sent = trajectory(ticket(0))
    assert queue.open_batch("step-000000", [sent.ticket])
    (claim,) = queue.claim("a", 10)
    assert claim.ticket == sent.ticket
    assert queue.commit(claim, sent)
    (arrival,) = queue.arrivals("step-000000")
    assert (arrival.index, arrival.tokens) == (0, 12)
    (received,) = queue.results("step-000000", [0])
    assert received.ticket == sent.ticket
    assert (received.correct, received.answered_after_think, received.sampler, received.worker) == (
        True,
        False,
        "s",
        "w",
    )
    assert (received.sample.seconds, received.sample.truncated, received.sample.policy_version) == (0.25, False, 3)
    for name in ("response_ids", "logprobs"):
        assert np.array_equal(getattr(received.sample, name), getattr(sent.sample, name))
    for name in ("logprobs", "entropy"):
        assert np.array_equal(getattr(received.scores, name), getattr(sent.scores, name))
    assert np.array_equal(received.scores.top_k.ids, sent.scores.top_k.ids)
    assert np.array_equal(received.scores.top_k.logprobs, sent.scores.top_k.logprobs)


def test_a_batch_is_opened_once(queue):
    assert queue.open_batch("step-000000", [ticket(0), ticket(1)])
    assert not queue.open_batch("step-000000", [ticket(0), ticket(1)])
    assert len(queue.claim("a", 10)) == 2
    assert queue.waiting() == 2


def test_the_first_result_wins(queue):
    queue.open_batch("step-000000", [ticket(0)])
    (claim,) = queue.claim("a", 1)
    (taken,) = queue.claim_abandoned("b", 1, idle_seconds=0)
    assert queue.commit(taken, trajectory(claim.ticket, "b"))
    assert not queue.commit(claim, trajectory(claim.ticket, "a"))
    assert [t.worker for t in queue.results("step-000000", [0])] == ["b"]
    assert len(queue.arrivals("step-000000")) == 1
    assert queue.waiting() == 0


def let_time_pass(queue: RedisQueue, claim: Claim, worker: str, seconds: int) -> None:
    """The server counts a claim as idle for so long; nobody has to wait for it."""
    stream = queue._stream(claim.ticket.batch)
    queue.client.xclaim(stream, GROUP, worker, 0, [claim.entry], idle=seconds * 1000, justid=True)


def test_a_silent_worker_loses_its_tickets_and_a_busy_one_keeps_them(queue):
    queue.open_batch("step-000000", [ticket(0), ticket(1)])
    (silent,) = queue.claim("silent", 1)
    (busy,) = queue.claim("busy", 1)
    for claim, worker in ((silent, "silent"), (busy, "busy")):
        let_time_pass(queue, claim, worker, seconds=100)
    queue.renew("busy", [busy])
    taken = queue.claim_abandoned("other", 10, idle_seconds=60)
    assert [claim.ticket.index for claim in taken] == [silent.ticket.index]
    assert queue.deliveries(taken[0]) == 2
    assert queue.deliveries(busy) == 1


def test_a_restarted_worker_finds_what_it_had_in_hand(queue):
    queue.open_batch("step-000000", [ticket(i) for i in range(3)])
    before = queue.claim("a", 2)
    assert queue.own_claims("a") == before
    assert queue.own_claims("b") == []


def test_a_late_result_of_a_released_batch_is_dropped(queue):
    queue.open_batch("step-000000", [ticket(0), ticket(1)])
    first, second = queue.claim("a", 2)
    assert queue.commit(first, trajectory(first.ticket))
    queue.release_batch("step-000000")
    assert not queue.commit(second, trajectory(second.ticket))
    assert queue.open_batches() == []
    assert queue.arrivals("step-000000", block_seconds=0.01) == []
    assert not any(b"results" in key or b"arrivals" in key for key in queue.client.scan_iter())


def test_a_released_batch_can_be_issued_anew(queue):
    """As a learner does that fell back to an older checkpoint."""
    queue.open_batch("step-000000", [ticket(0)])
    (claim,) = queue.claim("a", 1)
    queue.commit(claim, trajectory(claim.ticket))
    queue.release_batch("step-000000")
    assert queue.open_batch("step-000000", [ticket(0)])
    assert queue.open_batches() == ["step-000000"]
    (again,) = queue.claim("a", 1)
    assert queue.commit(again, trajectory(again.ticket))


def test_a_result_from_before_a_release_does_not_count_for_the_tickets_issued_after_it(queue):
    """It was sampled from weights that the restarted learner replaced. Tickets nobody had claimed are withdrawn too."""
    queue.open_batch("step-000000", [ticket(0), ticket(1)])
    queue.open_batch("step-000001", [ticket(0, "step-000001")])
    (stale,) = queue.claim("a", 1)
    queue.release_batch("step-000000")
    assert queue.open_batch("step-000000", [ticket(0), ticket(1)])
    assert not queue.commit(stale, trajectory(stale.ticket, "a"))
    assert not queue.dead_letter(stale, "failed")
    assert queue.arrivals("step-000000", block_seconds=0.01) == []
    claims = queue.claim("b", 10)
    assert sorted(claim.ticket.id for claim in claims) == sorted(
        [ticket(0).id, ticket(1).id, ticket(0, "step-000001").id]
    )
    assert all(queue.commit(claim, trajectory(claim.ticket, "b")) for claim in claims)
    assert {t.worker for t in queue.results("step-000000", [0, 1])} == {"b"}
    assert queue.waiting() == 0


def test_the_newest_announcement_is_found(queue):
    assert queue.wait_for_policy("0-0", 0.01) is None
    queue.announce_policy(1, "a")
    queue.announce_policy(2, "b")
    newest = queue.wait_for_policy("0-0", 1)
    assert newest == Announcement(newest.entry, 2, "b")
    assert queue.wait_for_policy(newest.entry, 0.01) is None


def test_a_dead_letter_arrives_as_missing_with_its_reason(queue):
    queue.open_batch("step-000000", [ticket(0)])
    (claim,) = queue.claim("a", 1)
    assert queue.dead_letter(claim, "prompt too long")
    (arrival,) = queue.arrivals("step-000000")
    assert arrival.tokens == 0
    assert queue.dead_letters() == [(ticket(0), "prompt too long")]
    assert not queue.commit(claim, trajectory(claim.ticket))


def test_waiting_for_arrivals_ends_with_the_first(queue):
    queue.open_batch("step-000000", [ticket(0)])
    (claim,) = queue.claim("a", 1)
    start = time.monotonic()
    with ThreadPoolExecutor(1) as waiter:
        arrivals = waiter.submit(queue.arrivals, "step-000000", block_seconds=300)
        while not any(client["cmd"] == "xread" and "b" in client["flags"] for client in queue.client.client_list()):
            assert time.monotonic() - start < 120, "nobody waits"
        assert queue.commit(claim, trajectory(claim.ticket))
        assert len(arrivals.result(timeout=120)) == 1
    assert time.monotonic() - start < 300
    assert queue.arrivals("step-000000", after="0-0", block_seconds=0.01) != []


def test_workers_that_die_at_random_lose_and_double_nothing(queue):
    """Workers abandon claims, commit twice and take over from one another; each ticket arrives exactly once."""
    count = 200
    queue.open_batch("step-000000", [ticket(i) for i in range(count)])

    def work(name: str) -> None:
        mine = random.Random(name)
        stale: list[Claim] = []
        while queue.waiting():
            claims = queue.claim(name, 5, block_seconds=0.01) or queue.claim_abandoned(name, 5, idle_seconds=0.02)
            for claim in claims:
                if mine.random() < 0.3:
                    stale.append(claim)
                    continue
                queue.commit(claim, trajectory(claim.ticket, name))
                if mine.random() < 0.2:
                    assert not queue.commit(claim, trajectory(claim.ticket, name))
            if stale and mine.random() < 0.3:
                late = stale.pop()
                queue.commit(late, trajectory(late.ticket, name))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, [f"w{i}" for i in range(4)]))  # raises what a thread raised
    arrivals = queue.arrivals("step-000000")
    arrived = {arrival.index for arrival in arrivals}
    assert len(arrivals) == count
    assert arrived == set(range(count))


def test_nothing_is_lost_when_the_server_is_killed(redis_server, queue):
    queue.open_batch("step-000000", [ticket(i) for i in range(4)])
    first, second, *_ = queue.claim("a", 3)
    assert queue.commit(first, trajectory(first.ticket))
    redis_server.kill()
    redis_server.start()
    embedded_redis.wait_until_ready(redis_server.url)
    assert [arrival.index for arrival in queue.arrivals("step-000000")] == [first.ticket.index]
    assert len(queue.own_claims("a")) == 2
    assert queue.commit(second, trajectory(second.ticket))
    assert len(queue.claim("b", 10)) == 1


def test_depth_tells_what_waits_and_for_how_long(redis_server):
    queue = open_queue(redis_server.url, "depth")
    assert queue.depth() == Depth(waiting=0, claimed=0, oldest_seconds=0.0, dead=0)
    queue.open_batch("step-000000", [ticket(i) for i in range(3)])
    assert (queue.depth().waiting, queue.depth().claimed) == (3, 0)
    queue.join()
    first, second = queue.claim("a", 2)
    depth = queue.depth()
    assert (depth.waiting, depth.claimed, depth.dead) == (1, 2, 0)
    assert 0 <= depth.oldest_seconds < 60
    queue.dead_letter(first, "too long")
    queue.commit(second, trajectory(second.ticket))
    assert (queue.depth().claimed, queue.depth().dead) == (0, 1)


def test_the_learners_page_says_that_redis_is_gone_instead_of_waiting_for_it(tmp_path):
    collector = ResourceCollector("redis://127.0.0.1:1/0", "r", {"run": tmp_path})
    families = {family.name: family.samples for family in collector.collect()}
    assert families["calopd_learner_queue_up"][0].value == 0
    assert families["calopd_learner_queue_tickets"] == []
    assert families["calopd_learner_disk_free_bytes"][0].labels == {"volume": "run"}


def evaluation(index: int) -> Ticket:
    return dataclasses.replace(ticket(index), batch="eval-000004")


def test_evaluations_wait_apart_from_steps(queue):
    queue.open_batch("eval-000004", [evaluation(i) for i in range(3)])
    queue.open_batch("step-000000", [ticket(0)])
    assert [claim.ticket.batch for claim in queue.claim("a", 10)] == ["step-000000"]
    claims = queue.claim_evaluations("a", 2)
    assert [claim.ticket.index for claim in claims] == [0, 1]
    queue.renew("a", claims)
    assert len(queue.own_claims("a")) == 3
    assert queue.commit(claims[0], trajectory(claims[0].ticket))
    assert [arrival.index for arrival in queue.arrivals("eval-000004")] == [0]
    assert queue.claim_abandoned("b", 10, idle_seconds=0) != []
    (taken,) = queue.claim_abandoned("b", 10, idle_seconds=0, evaluations=True)
    assert taken.ticket.index == 1


def test_a_ticket_given_back_can_be_claimed_again_and_counts_as_new(queue):
    queue.open_batch("eval-000004", [evaluation(0)])
    for _ in range(5):
        (claim,) = queue.claim_evaluations("a", 1)
        assert queue.deliveries(claim) == 1
        queue.give_back(claim)
        queue.give_back(claim)
    assert queue.waiting() == 1
    assert queue.own_claims("a") == []
    (claim,) = queue.claim_evaluations("b", 9)
    assert queue.commit(claim, trajectory(claim.ticket))
    queue.give_back(claim)
    assert queue.waiting() == 0
