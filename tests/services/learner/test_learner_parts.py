import json
import random
from datetime import timedelta
from pathlib import Path
from typing import cast

import hypothesis.strategies as st
import pytest
import torch
import torch.distributed as dist
from hypothesis import given

from calopd.config.sections import LearnerSection
from calopd.core.environment import RANK_STORE
from calopd.core.errors import ConfigError
from calopd.data.problems import load_all, load_problems, training_order
from calopd.models.devices import LOOPBACK
from calopd.transport.queue import Arrival, Queue
from services.learner.batching import DynamicBatcher, assignments, balanced_round
from services.learner.evaluations import gain_interval
from services.learner.export import own_dtype
from services.learner.ranks import Ranks
from services.learner.schedule import learning_rate
from tests.transport.batches import BATCH
from tests.transport.test_redis_queue import ticket

LENGTHS = st.lists(st.integers(0, 60), min_size=1, max_size=40)


def arrivals(lengths: list[int], order: list[int]) -> list[Arrival]:
    return [Arrival(f"{n}-0", index, lengths[index]) for n, index in enumerate(order)]


def assign(lengths, order, draw, ranks, *, deterministic):
    """All assignments of a batch whose trajectories arrive in this order, a few at a time."""
    batcher = DynamicBatcher(len(lengths), max_tokens=64, ranks=ranks, deterministic=deterministic)
    assignments, waiting = [], arrivals(lengths, order)
    while waiting:
        size = draw.randint(1, len(waiting))
        batcher.add(waiting[:size])
        waiting = waiting[size:]
        while (assignment := batcher.take(flush=draw.random() < 0.3)) is not None:
            assignments.append(assignment)
    assert batcher.complete
    return assignments


@given(LENGTHS, st.integers(1, 4), st.integers(0, 1000), st.booleans())
def test_every_trajectory_enters_one_micro_batch_within_the_token_limit(lengths, ranks, seed, deterministic):
    draw = random.Random(seed)
    order = draw.sample(range(len(lengths)), len(lengths))
    assignments = assign(lengths, order, draw, ranks, deterministic=deterministic)
    assigned = [index for assignment in assignments for micro_batch in assignment for index in micro_batch]
    assert sorted(assigned) == [i for i, length in enumerate(lengths) if length]
    for assignment in assignments:
        assert len(assignment) == ranks
        for micro_batch in assignment:
            assert len(micro_batch) <= 1 or sum(lengths[i] for i in micro_batch) <= 64


@given(LENGTHS, st.integers(1, 4), st.integers(0, 1000), st.integers(0, 1000))
def test_deterministic_assignments_do_not_depend_on_the_order_of_arrival(lengths, ranks, one, other):
    results = []
    for seed in (one, other):
        draw = random.Random(seed)
        order = draw.sample(range(len(lengths)), len(lengths))
        results.append(assign(lengths, order, draw, ranks, deterministic=True))
    assert results[0] == results[1]


COST = st.sampled_from([float, lambda tokens: tokens + tokens**2 / 20])


@given(LENGTHS, st.integers(2, 4), COST)
def test_a_round_is_balanced_by_cost(lengths, ranks, cost):
    """No rank gets a second trajectory while another has none, and without its last one no rank has the most."""
    tokens = {i: length for i, length in enumerate(lengths) if length}
    shares, left = balanced_round(list(tokens), tokens, ranks=ranks, max_tokens=10**6, cost=cost)
    assert not left
    assert sorted(i for share in shares for i in share) == sorted(tokens)
    costs = [[cost(tokens[i]) for i in share] for share in shares]
    assert max(map(len, costs)) <= 1 or min(map(len, costs)) >= 1
    assert all(sum(own) - min(own) <= min(map(sum, costs)) + 1e-6 for own in costs if own)


def test_the_attention_term_counts():
    """One response of 16 tokens costs as much as four of 8 if the cost is quadratic."""
    tokens = dict(enumerate([16, 8, 8, 8, 8]))
    shares, _ = balanced_round(list(tokens), tokens, ranks=2, max_tokens=100, cost=lambda n: n**2)
    assert shares == [[0], [1, 2, 3, 4]]


def test_idle_ranks_start_on_what_is_there():
    batcher = DynamicBatcher(9, max_tokens=64, ranks=2)
    batcher.add(arrivals([10] * 9, [3]))
    assert batcher.take() is None, "another one may arrive within moments"
    assert batcher.take(flush=True) == [[3], []]
    batcher.add(arrivals([10] * 9, [0, 1, 2]))
    assert batcher.take() == [[0, 2], [1]], "micro-batches are not filled up first"


def test_a_method_that_saw_the_whole_step_learns_from_it_in_full_rounds():
    batcher = DynamicBatcher(8, max_tokens=64, ranks=2)
    for index in range(8):
        batcher.add(arrivals([16] * 8, [index]))
        batcher.take(flush=True)
    assert batcher.take(flush=True) is None
    assert batcher.rounds() == [[[0, 2, 4, 6], [1, 3, 5, 7]]]


def test_a_ticket_that_arrives_twice_is_assigned_once():
    batcher = DynamicBatcher(3, max_tokens=64, deterministic=False)
    batcher.add(arrivals([10, 10, 10], [0, 1]))
    batcher.add(arrivals([10, 10, 10], [1, 0, 2]))
    assert batcher.take() == [[0, 1, 2]]
    assert batcher.take() is None


class SlowQueue:
    """One trajectory per poll, the first ticket last: as in a deterministic run whose first response is the longest."""

    def __init__(self, count: int) -> None:
        self.count, self.polls = count, 0

    def arrivals(self, batch: str, after: str, block_seconds: float) -> list[Arrival]:
        self.polls += 1
        return [Arrival(f"{self.polls}-0", self.count - self.polls, 10)]


@pytest.mark.parametrize("deterministic", [True, False])
def test_other_ranks_hear_of_every_poll(deterministic):
    """They wait for rank 0 in a collective, which ends after some minutes, however long the step takes."""
    queue, batcher = SlowQueue(20), DynamicBatcher(20, max_tokens=64, ranks=2, deterministic=deterministic)
    polls_before, tickets = 0, [ticket(index) for index in range(20)]
    for _ in assignments(cast(Queue, queue), BATCH, tickets, batcher):
        assert queue.polls - polls_before <= 1
        polls_before = queue.polls
    assert queue.polls == 20


def test_learning_rate_is_half_a_cosine_to_zero():
    rates = [learning_rate(step, steps=100, peak=1e-6, warmup_steps=0) for step in range(101)]
    assert rates[0] == 1e-6
    assert rates[50] == pytest.approx(0.5e-6)
    assert rates[100] == pytest.approx(0, abs=1e-20)
    assert rates == sorted(rates, reverse=True)
    warm = [learning_rate(step, steps=60, peak=4.0, warmup_steps=3) for step in range(5)]
    assert warm[:4] == [1.0, 2.0, 3.0, 4.0]
    assert warm[4] < 4


def test_training_order_is_a_function_of_the_position():
    whole = list(training_order(10, seed=3, start=0, length=35))
    assert list(training_order(10, seed=3, start=17, length=18)) == whole[17:]
    assert [epoch for epoch, _ in whole] == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 5
    for epoch in range(3):
        assert sorted(number for e, number in whole if e == epoch) == list(range(10))
    assert [n for _, n in whole[:10]] != [n for _, n in whole[10:20]]


def test_an_id_in_both_files_is_refused(tmp_path):
    for name in ("train", "heldout"):
        (tmp_path / name).write_text('{"id": 1, "problem": "p", "answer": 2}\n')
    with pytest.raises(ConfigError, match="1 ids are in both"):
        load_all(tmp_path / "train", tmp_path / "heldout")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": 1, "problem": "p"}\n', "line 1.*answer"),
        ("nonsense\n", "line 1"),
        ('{"id": 1, "problem": "p", "answer": 2}\n' * 2, "line 2.*duplicate id"),
        ("", "contains no problems"),
    ],
)
def test_bad_data_is_named_by_line(tmp_path, text, message):
    file = tmp_path / "data.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_problems(file)


def test_gain_interval_is_of_paired_differences():
    before = {"by_problem": {str(i): float(i % 2) for i in range(100)}}
    after = {"by_problem": {str(i): 1.0 for i in range(100)}}
    low, high = gain_interval(before, after)
    assert (low + high) / 2 == pytest.approx(0.5, abs=0.01)
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / 10, rel=0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_exported_student_has_the_data_type_of_the_model(tiny, tmp_path, dtype):
    values = json.loads((Path(tiny.student) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "dtype": str(dtype).removeprefix("torch.")}))
    assert own_dtype(str(tmp_path)) == dtype


def test_all_groups_of_ranks_give_up_after_the_minutes_of_the_settings(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", RANK_STORE.name):
        monkeypatch.delenv(name, raising=False)
    for name, value in LOOPBACK.items():  # it is set for this process only
        monkeypatch.setenv(name, value)
    ranks = Ranks(LearnerSection(device="cpu", collective_minutes=7))
    try:
        groups = (dist.group.WORLD, ranks.mesh.get_group(0), ranks._control, ranks.checkpoints)
        waits = {group._get_backend(ranks.device).options._timeout for group in groups}
    finally:
        ranks.close()
    assert waits == {timedelta(minutes=7)}
