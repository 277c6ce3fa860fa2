"""Entries and values of the queue that are damaged: they are refused, stored apart and issued again."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calopd.core.errors import ResultsLost
from calopd.core.types import Trajectory
from calopd.local import embedded_redis
from calopd.transport.checksums import with_checksum
from calopd.transport.convert import trajectory_to_bytes
from services.learner import batching
from services.learner.batching import DynamicBatcher, assignments
from tests.transport.batches import BATCH, arrived
from tests.transport.test_redis_queue import ticket, trajectory


@pytest.mark.parametrize(
    "fields",
    [
        {"t": with_checksum(b"\xff\xff no protobuf"), "b": BATCH},
        {"t": with_checksum(b""), "b": BATCH},
        {"t": with_checksum(b""), "b": b""},
        {"t": b"", "b": BATCH},
        {"b": BATCH},
        {"unknown": "field"},
        {"t": with_checksum(b"\n\x01r\x12\x02\xff\xfe"), "b": BATCH},
    ],
)
def test_an_entry_that_is_no_ticket_stops_nobody(queue, fields):
    tickets = [ticket(i) for i in range(3)]
    queue.open_batch(BATCH, tickets)
    spoiled = queue.client.xrange("calopd:r:tickets")[1][0]
    queue.client.xdel("calopd:r:tickets", spoiled)
    queue.client.xadd("calopd:r:tickets", fields)
    assert [claim.ticket.index for claim in queue.claim("a", 9)] == [0, 2]
    assert [claim.ticket.index for claim in queue.own_claims("a")] == [0, 2]
    assert queue.claim("b", 9, block_seconds=0.001) == []
    assert (queue.client.xlen("calopd:r:malformed"), queue.depth().dead) == (1, 1)
    assert queue.reissue_lost(BATCH, tickets) == 1
    assert [claim.ticket.index for claim in queue.claim("b", 9)] == [1]
    assert queue.reissue_lost(BATCH, tickets) == 0


def with_scores(done: Trajectory, **changes: Any) -> Trajectory:
    return replace(done, scores=replace(done.scores, **changes))


DAMAGES: dict[str, Callable[[Trajectory], Trajectory]] = {
    "no scores": lambda done: replace(done, scores=None),
    "one context fewer": lambda done: with_scores(done, names=("c0",), logprobs=done.scores.logprobs[:1]),
    "another context": lambda done: with_scores(done, names=("c0", "eval-")),
    "one score fewer": lambda done: with_scores(done, logprobs=done.scores.logprobs[:, :-1]),
    "NaN": lambda done: with_scores(done, logprobs=done.scores.logprobs * np.nan),
    "no entropy": lambda done: with_scores(done, entropy=None),
    "no top-k": lambda done: with_scores(done, top_k=None),
    "one log-probability fewer": lambda done: replace(
        done, sample=replace(done.sample, logprobs=done.sample.logprobs[:-1])
    ),
}


@pytest.mark.parametrize("damage", ["unreadable", *DAMAGES])
def test_a_damaged_result_is_withdrawn_and_sampled_again(queue, damage):
    tickets = [ticket(i) for i in range(2)]
    queue.open_batch(BATCH, tickets)
    for claim in queue.claim("a", 2):
        queue.commit(claim, trajectory(claim.ticket))
    spoil = DAMAGES.get(damage)
    stored = trajectory_to_bytes(spoil(trajectory(tickets[1]))) if spoil else b"\xff\xff"
    queue.client.hset(f"calopd:r:results:{BATCH}", "1", with_checksum(stored))
    with pytest.raises(ResultsLost) as lost:
        queue.results(BATCH, [0, 1])
    assert lost.value.indices == [1]
    queue.withdraw_results(BATCH, lost.value.indices)
    assert arrived(queue) == {0}
    assert queue.reissue_lost(BATCH, tickets) == 1
    (again,) = queue.claim("a", 9)
    assert queue.commit(again, trajectory(again.ticket))
    assert [t.ticket.index for t in queue.results(BATCH, [0, 1])] == [0, 1]
    batcher = DynamicBatcher(2, max_tokens=99)
    batcher.add(queue.arrivals(BATCH))
    assert batcher.complete


def flip_a_bit(folder: Path, value: bytes) -> None:
    """Flip one in the middle of a value in the file of a server that has ended."""
    (file,) = (folder / embedded_redis.DATA).glob("*.incr.aof")
    content = bytearray(file.read_bytes())
    at = content.rindex(value) + len(value) // 2
    content[at] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damaged", ["ticket", "result"])
def test_a_bit_that_flipped_in_the_servers_file_is_found(redis_server, queue, tmp_path, damaged):
    tickets = [ticket(i) for i in range(2)]
    queue.open_batch(BATCH, tickets)
    if damaged == "ticket":
        value = queue.client.xrange("calopd:r:tickets")[1][1][b"t"]
    else:
        for claim in queue.claim("a", 2):
            queue.commit(claim, trajectory(claim.ticket))
        value = queue.client.hget(f"calopd:r:results:{BATCH}", "1")
    redis_server.kill()
    flip_a_bit(tmp_path, value)
    redis_server.start()
    embedded_redis.wait_until_ready(redis_server.url)
    if damaged == "ticket":
        assert [claim.ticket for claim in queue.claim("a", 9)] == [tickets[0]]
        assert queue.depth().dead == 1
    else:
        with pytest.raises(ResultsLost) as lost:
            queue.results(BATCH, [0, 1])
        assert lost.value.indices == [1]
        queue.withdraw_results(BATCH, [1])
    assert queue.reissue_lost(BATCH, tickets) == 1
    assert [claim.ticket for claim in queue.claim("a", 9)] == [tickets[1]]


@pytest.mark.parametrize("index", ["7", "0"])
def test_a_result_whose_arrival_names_another_ticket_is_sampled_again(queue, monkeypatch, index):
    monkeypatch.setattr(batching, "REOPEN_AFTER", 1)
    monkeypatch.setattr(batching, "BLOCK_SECONDS", 0.01)
    tickets = [ticket(i) for i in range(2)]
    queue.open_batch(BATCH, tickets)
    for claim in queue.claim("a", 2):
        queue.commit(claim, trajectory(claim.ticket))
    stream = f"calopd:r:arrivals:{BATCH}"
    entry, fields = queue.client.xrange(stream)[1]
    queue.client.xdel(stream, entry)
    queue.client.xadd(stream, fields | {b"i": index})
    used: list[int] = []
    for found in assignments(queue, BATCH, tickets, DynamicBatcher(2, max_tokens=99)):
        used += found[0] if found else []
        for claim in queue.claim("b", 9, block_seconds=0.001):
            queue.commit(claim, trajectory(claim.ticket))
    assert sorted(used) == [0, 1]


GARBAGE = {"x": b"\xff"}


def test_an_announcement_that_cannot_be_read_is_passed_over(queue):
    queue.announce_policy(1, "a")
    queue.client.xadd("calopd:r:policies", GARBAGE)
    queue.client.xadd("calopd:r:policies", {"version": "1x", "sha256": "b"})
    newest = queue.wait_for_policy("0-0", 1)
    assert (newest.version, newest.sha256) == (1, "a")
    assert queue.wait_for_policy(newest.entry, 0.001) is None
    assert queue.client.xlen("calopd:r:policies") == 1, "nobody reads them again"
    queue.announce_policy(2, "c")
    assert queue.wait_for_policy(newest.entry, 1).version == 2


def test_an_arrival_that_cannot_be_read_is_passed_over(queue):
    queue.open_batch(BATCH, [ticket(0)])
    queue.client.xadd(f"calopd:r:arrivals:{BATCH}", GARBAGE)
    queue.client.xadd(f"calopd:r:arrivals:{BATCH}", {"i": "0", "n": "1.5"})
    (claim,) = queue.claim("a", 9)
    queue.commit(claim, trajectory(claim.ticket))
    assert [arrival.index for arrival in queue.arrivals(BATCH)] == [0]
    assert queue.depth().dead == 2


def test_a_dead_letter_that_cannot_be_read_stops_nobody_and_its_ticket_is_issued_again(queue):
    tickets = [ticket(i) for i in range(3)]
    queue.open_batch(BATCH, tickets)
    for claim in queue.claim("a", 9):
        queue.dead_letter(claim, "too long")
    entry, fields = queue.client.xrange("calopd:r:dead")[1]
    queue.client.xdel("calopd:r:dead", entry)
    queue.client.xadd("calopd:r:dead", fields | {b"t": fields[b"t"][:-1] + b"?"})
    assert [letter.index for letter, _ in queue.dead_letters()] == [0, 2]
    assert [letter.index for letter in queue.retry_dead_letters()] == [0, 2]
    assert arrived(queue) == set()
    assert queue.reissue_lost(BATCH, tickets) == 1
    assert sorted(claim.ticket.index for claim in queue.claim("a", 9)) == [0, 1, 2]
