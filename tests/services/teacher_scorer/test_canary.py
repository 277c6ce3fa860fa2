"""A teacher that goes bad is told from a good one, with the reason."""

import asyncio

import grpc
import numpy as np
import pytest
import torch

from calopd.core.errors import InvalidRequest, Overloaded, ScoresRefused, UnhealthyTeacher
from calopd.transport.v1 import teacher_scorer_pb2 as pb
from services.teacher_scorer.canary import Canary
from services.teacher_scorer.engines.scoring_engine import SequenceToScore
from services.teacher_scorer.engines.torch_scorer import TorchScorer
from services.teacher_scorer.scheduler import Scheduler
from services.teacher_scorer.servicer import STATUS, Limits, Servicer

IDS = np.random.default_rng(0).integers(3, 390, 120, np.int32)


@pytest.fixture
def engine(tiny):
    return TorchScorer(str(tiny.teacher), dtype="float32", device="cpu", chunk=32)


@pytest.fixture
def scheduler(engine):
    scheduler = Scheduler(engine, batch_tokens=4_096, max_waiting=2)
    yield scheduler
    scheduler.stop()


def spoil(engine: TorchScorer, how: str) -> None:
    weight = engine._lm.lm_head.weight
    with torch.no_grad():
        if how == "nan":
            weight[7] = float("nan")
        elif how == "uniform":
            weight.zero_()
        else:
            weight.mul_(1.01)


@pytest.mark.parametrize(
    ("how", "reason"), [("nan", "NaN"), ("uniform", "-ln V"), ("drifted", "canary scores deviate")]
)
def test_a_teacher_that_goes_bad_is_refused(engine, scheduler, how, reason):
    canary = Canary(engine, IDS)
    asyncio.run(canary.check(scheduler))
    spoil(engine, how)
    with pytest.raises(UnhealthyTeacher, match=reason):
        asyncio.run(canary.check(scheduler))


def test_a_teacher_that_starts_bad_never_serves(engine):
    spoil(engine, "uniform")
    with pytest.raises(UnhealthyTeacher, match="-ln V"):
        Canary(engine, IDS)


def test_bad_scores_of_a_request_are_refused_and_not_sent(engine, scheduler):
    servicer = Servicer(engine, scheduler, ["a"] * 400, Limits(max_tokens=512, max_contexts=4, max_top_k=4))
    request = pb.ScoreRequest(
        response_ids=IDS[:50].tobytes(), contexts=[pb.Context(name="c0", prompt_ids=IDS[50:].tobytes())]
    )
    assert len(asyncio.run(servicer._score(request)).scores[0].logprobs) == 200
    spoil(engine, "nan")
    with pytest.raises(ScoresRefused, match="NaN"):
        asyncio.run(servicer._score(request))
    assert STATUS[ScoresRefused] == grpc.StatusCode.DATA_LOSS
    assert STATUS[UnhealthyTeacher] == grpc.StatusCode.UNAVAILABLE
    assert STATUS[InvalidRequest] == grpc.StatusCode.INVALID_ARGUMENT


def test_the_watch_goes_on_after_a_failure_and_says_when_it_is_well_again(engine, scheduler):
    canary = Canary(engine, IDS)
    reports: list[UnhealthyTeacher | None] = []
    watch: asyncio.Task[None] | None = None
    good = engine._lm.lm_head.weight.clone()

    async def report(error: UnhealthyTeacher | None) -> None:
        reports.append(error)
        if len(reports) == 1:
            spoil(engine, "uniform")
        elif len(reports) == 2:
            engine._lm.lm_head.weight.copy_(good)
        elif len(reports) == 3:
            watch.cancel()

    async def run() -> None:
        nonlocal watch
        watch = asyncio.create_task(canary.watch(scheduler, 0.01, report))
        with pytest.raises(asyncio.CancelledError):
            await watch

    asyncio.run(run())
    assert [error is None for error in reports] == [True, False, True]


def test_a_full_queue_refuses_requests_but_not_the_canary(engine, scheduler):
    sequence = SequenceToScore(IDS[:60], IDS[60:])

    async def run() -> None:
        busy = [asyncio.create_task(scheduler.score([sequence])) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="2 requests are waiting"):
            await scheduler.score([sequence])
        await scheduler.score([sequence], urgent=True)
        await asyncio.gather(*busy)
        await scheduler.score([sequence])

    asyncio.run(run())
