import dataclasses
import functools
import itertools
import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from calopd.core.errors import UnhealthyTeacher
from calopd.core.lm_head import HeadScores, score_targets
from calopd.core.score_checks import check_scores
from calopd.core.types import ScoreOptions
from services.teacher_scorer.engines.scoring_engine import SequenceScores, SequenceToScore
from services.teacher_scorer.fair_queue import FairQueue, Request, tokens_of


def request(client: str, *lengths: int, urgent: bool = False) -> Request:
    """Each length is that of a sequence's pass."""
    response = np.zeros(2, np.int32)
    return Request(client, [SequenceToScore(np.zeros(n - 1, np.int32), response) for n in lengths], urgent)


def served(queue: FairQueue, budget: int) -> list[Request]:
    """The requests in the order in which their last sequence is taken."""
    order = []
    while batch := queue.take(budget):
        order += [item for item, index in batch if index == len(item.sequences) - 1]
    return order


CALLS = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.integers(2, 40), min_size=1, max_size=4)), min_size=1, max_size=20
)


@given(CALLS, st.integers(1, 100))
def test_every_sequence_is_taken_once_within_the_budget(calls, budget):
    queue = FairQueue()
    requests = [request(client, *lengths) for client, lengths in calls]
    for item in requests:
        queue.add(item)
    taken = []
    while batch := queue.take(budget):
        assert len(batch) == 1 or tokens_of(batch) <= budget
        taken += batch
    assert sorted((requests.index(item), index) for item, index in taken) == [
        (r, i) for r, item in enumerate(requests) for i in range(len(item.sequences))
    ]
    assert len(queue) == 0


def test_a_client_with_much_work_does_not_starve_another():
    queue = FairQueue()
    for _ in range(50):
        queue.add(request("greedy", 100))
    for _ in range(3):
        queue.take(100)
    late = request("modest", 100)
    queue.add(late)
    assert served(queue, 100).index(late) <= 1


def test_a_short_request_overtakes_a_long_one_but_only_so_often():
    queue = FairQueue()
    long = request("one", *[1_000] * 3)
    queue.add(long)
    overtaken = 0
    while True:
        queue.add(request("one", 100))
        ((taken, _),) = queue.take(1)
        if taken is long:
            break
        overtaken += 1
    assert 1 <= overtaken <= long.tokens / 100


def test_the_canary_goes_first_and_a_cancelled_request_goes_away():
    queue = FairQueue()
    first, second, canary = request("one", 10), request("one", 10), request("", 10, urgent=True)
    for item in (first, second, canary):
        queue.add(item)
    queue.remove(first)
    assert served(queue, 10) == [canary, second]


HEALTHY = np.linspace(-3, -0.1, 80, dtype=np.float32)


@pytest.mark.parametrize(
    ("scores", "tokens", "reason"),
    [
        (np.where(np.arange(80) == 3, np.nan, HEALTHY), 80, "1 of 80"),
        (HEALTHY + 4, 80, "above 0"),
        (HEALTHY, 81, "wrong length"),
        (np.full(80, -math.log(1000), np.float32), 80, "-ln V"),
        (np.full(80, -1.5, np.float32), 80, "zero variance"),
    ],
)
def test_a_bad_teacher_is_refused_with_the_reason(scores, tokens, reason):
    check_scores(HEALTHY, 80, 1000)
    with pytest.raises(UnhealthyTeacher, match=reason):
        check_scores(scores, tokens, 1000)


@functools.cache
def head_scores(tokens: int, options: ScoreOptions) -> HeadScores:
    draw = torch.Generator().manual_seed(tokens)
    hidden, weight = torch.randn(tokens, 6, generator=draw), torch.randn(20, 6, generator=draw)
    return score_targets(hidden, weight, torch.arange(tokens) % 20, options)


@pytest.mark.parametrize(
    "options", [ScoreOptions(), ScoreOptions(3), ScoreOptions(3, want_entropy=True), ScoreOptions(3, True, 1.9)]
)
@given(cuts=st.lists(st.integers(0, 12), max_size=4))
def test_scores_cut_into_rows_and_joined_again_are_the_same(options, cuts):
    whole = SequenceScores.of(head_scores(12, options))
    parts = [whole.rows(start, end) for start, end in itertools.pairwise([0, *sorted(cuts), 12])]
    joined = SequenceScores.joined(parts)
    assert joined.arrays().keys() == whole.arrays().keys()
    for name, values in whole.arrays().items():
        assert np.array_equal(values, joined.arrays()[name])
    for part in parts:
        if part.top_positions is not None:
            assert len(part.top_ids) == len(part.top_logprobs) == len(part.top_positions)
            assert all(0 <= position < len(part.logprobs) for position in part.top_positions)


def test_scores_of_a_sequence_have_the_fields_of_the_head():
    names = [{field.name for field in dataclasses.fields(cls)} for cls in (HeadScores, SequenceScores)]
    assert names[0] - names[1] == {"forward_kl"}, "used by the learner only"
    assert names[1] <= names[0]


@given(CALLS, st.integers(1, 100))
def test_a_request_taken_separately_is_cut_the_same_way_whatever_else_waits(calls, budget):
    def cuts(chosen) -> list[list[list[int]]]:
        """The batches of each request, as the indices of its sequences."""
        queue, requests = FairQueue(), [request(client, *lengths) for client, lengths in chosen]
        for item in requests:
            queue.add(item)
        found: list[list[list[int]]] = [[] for _ in requests]
        while batch := queue.take(budget, separately=True):
            (only,) = {requests.index(item) for item, _ in batch}
            found[only].append([index for _, index in batch])
        return found

    assert cuts(calls) == [cuts([call])[0] for call in calls]
