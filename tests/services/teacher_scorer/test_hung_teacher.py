"""A teacher whose engine hangs or breaks: it says so, and no client waits for ever."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from calopd.config import load_config
from calopd.core.errors import UnhealthyTeacher
from calopd.core.heartbeat import Heartbeat
from calopd.transport import convert
from calopd.transport.teacher_pin import CANARY, short_canaries
from calopd.transport.v1 import teacher_scorer_pb2 as pb
from calopd.transport.v1.teacher_scorer_pb2_grpc import TeacherScorerStub
from services.teacher_scorer import canary, server
from services.teacher_scorer.engines.scoring_engine import BatchScores, SequenceScores, SequenceToScore
from services.teacher_scorer.scheduler import Scheduler
from services.teacher_scorer.servicer import Limits, Servicer

IDS = np.arange(3, 60, dtype=np.int32)
LIMITS = Limits(max_tokens=512, max_contexts=4, max_top_k=4)


class FakeEngine:
    """Scores of a few lines; after `hangs` is set it does not come back."""

    name, model, revision, vocabulary_size, max_positions, dtype = "fake", "m", "r", 400, 1_024, torch.float32

    def __init__(self) -> None:
        self.hangs, self.goes_on = threading.Event(), threading.Event()

    def score(self, sequences: list[SequenceToScore]) -> BatchScores:
        if self.hangs.is_set():
            self.goes_on.wait(60)
        return BatchScores([SequenceScores(self.reference(s)) for s in sequences], sum(s.tokens for s in sequences))

    def reference(self, sequence: SequenceToScore) -> np.ndarray:
        return -np.linspace(0.1, 3.0, len(sequence.response_ids), dtype=np.float32)


def request(name: str = "t") -> pb.ScoreRequest:
    return convert.score_request(name, IDS[:9], {"c0": IDS})


def test_a_canary_that_never_comes_back_fails_in_time(monkeypatch):
    monkeypatch.setattr(canary, "SHORTEST_LIMIT_SECONDS", 0.05)
    engine: Any = FakeEngine()
    scheduler = Scheduler(engine, batch_tokens=512, max_waiting=4)
    watched = canary.Canary(engine, IDS)
    engine.hangs.set()

    async def watch() -> UnhealthyTeacher | None:
        reported: asyncio.Queue[UnhealthyTeacher | None] = asyncio.Queue()
        watching = asyncio.create_task(watched.watch(scheduler, 0.01, reported.put))
        found = await reported.get()
        watching.cancel()
        return found

    error = asyncio.run(watch())
    assert "the canary was not scored within" in str(error)
    engine.goes_on.set()
    scheduler.stop()


def test_a_hung_engine_turns_the_teacher_unhealthy(tiny, monkeypatch):
    """The real server, whose exit is replaced: it refuses requests and is NOT_SERVING."""
    engine, given_up = FakeEngine(), threading.Event()

    def refuse_only(heartbeat: Heartbeat, refuse: Any) -> None:
        def give_up(reason: str) -> None:
            refuse(reason)
            given_up.set()

        heartbeat.watch(give_up)

    monkeypatch.setattr(server, "build_engine", lambda *arguments, **settings: engine)
    monkeypatch.setattr(server, "exit_when_stalled", refuse_only)
    config = load_config(tiny.write_config("hung"), ["run.stall_seconds=0.3", "teacher.drain_seconds=0.01"], {})

    async def watch() -> tuple[int, str]:
        serving = asyncio.create_task(server.serve(config))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{config.teacher.port}") as channel:
            probes, stub = health_pb2_grpc.HealthStub(channel), TeacherScorerStub(channel)
            await stub.Score(request(), timeout=60, wait_for_ready=True)
            engine.hangs.set()
            waiting = asyncio.create_task(_ended(stub.Score(request(), timeout=60)))
            assert await asyncio.to_thread(given_up.wait, 60)
            answer = await probes.Check(health_pb2.HealthCheckRequest(), timeout=60)
            refused = await _ended(stub.Score(request(), timeout=60))
            engine.goes_on.set()
            await waiting
        signal.raise_signal(signal.SIGTERM)
        await serving
        return answer.status, refused.details()

    status, details = asyncio.run(watch())
    assert status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert "in: a batch of 1 sequences in the scoring engine" in details


def test_the_canary_of_a_rollout_passes_the_requests_that_wait():
    """The answers before it wait for it: behind a backlog they would reach the learner when all is scored."""
    engine: Any = FakeEngine()
    scheduler = Scheduler(engine, batch_tokens=48, max_waiting=4)
    servicer = Servicer(engine, scheduler, ["a"] * 400, LIMITS)
    engine.hangs.set()
    small = convert.score_request("t", IDS[:4], {"c0": IDS[:16]})
    (short, *_) = short_canaries(IDS)
    canary_request = convert.score_request(CANARY, short.response_ids, {CANARY: short.prompt_ids})
    large = convert.score_request(CANARY, IDS, {CANARY: IDS})

    async def ask() -> list[str]:
        ended = []

        async def score(name: str, message: pb.ScoreRequest) -> None:
            await servicer._score(message, "one client")
            ended.append(name)

        waiting = []
        for name, message in (("first", request()), ("small", small), ("large", large), ("canary", canary_request)):
            waiting.append(asyncio.create_task(score(name, message)))
            await asyncio.sleep(0)
        engine.goes_on.set()
        await asyncio.gather(*waiting)
        return ended

    ended = asyncio.run(ask())
    scheduler.stop()
    assert ended.index("canary") < ended.index("small")
    assert ended[-1] == "large", "only a short one is a canary"


async def _ended(call: Any) -> Any:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error


@pytest.mark.parametrize("broken", ["a request", "the reader"])
def test_an_unexpected_error_does_not_hang_a_stream(monkeypatch, broken):
    engine: Any = FakeEngine()
    scheduler = Scheduler(engine, batch_tokens=512, max_waiting=4)
    servicer = Servicer(engine, scheduler, ["a"] * 400, LIMITS)
    validated = servicer._validated

    def fail(message: pb.ScoreRequest) -> list[SequenceToScore]:
        if message.trajectory_id == "bad":
            raise ZeroDivisionError("a defect")
        return validated(message)

    monkeypatch.setattr(servicer, "_validated", fail)

    async def requests() -> AsyncIterator[pb.ScoreRequest]:
        for name in ("good", "bad", "other"):
            yield request(name)
        if broken == "the reader":
            raise ConnectionResetError("the client is gone")

    async def run() -> dict[str, str]:
        context = SimpleNamespace(peer=lambda: "client")
        async with asyncio.timeout(60):
            return {answer.trajectory_id: answer.error async for answer in servicer.ScoreStream(requests(), context)}

    try:
        if broken == "the reader":
            with pytest.raises(ExceptionGroup):
                asyncio.run(run())
        else:
            assert asyncio.run(run()) == {"good": "", "bad": "ZeroDivisionError('a defect')", "other": ""}
    finally:
        scheduler.stop()
