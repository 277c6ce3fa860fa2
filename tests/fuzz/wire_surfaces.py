"""Surfaces of the network: gRPC requests and HTTP requests."""

import asyncio
import json
import random
import threading
from collections.abc import Coroutine
from typing import Any

import grpc
import httpx
import numpy as np

from calopd.config import load_config
from calopd.core.types import ScoreOptions
from calopd.data.problems import load_problems
from calopd.models.prompts import Prompts
from calopd.models.tokenizers import load_tokenizer, vocabulary
from calopd.rundir.policy_reader import FileReader
from calopd.transport import convert
from calopd.transport.queue import open_queue
from calopd.transport.teacher_client import TeacherClient
from calopd.transport.v1 import teacher_scorer_pb2 as pb
from calopd.transport.v1.teacher_scorer_pb2_grpc import add_TeacherScorerServicer_to_server
from services.rollout.app import create_app
from services.rollout.engines import build_engine
from services.rollout.sampler import SamplingLoop
from services.rollout.worker import Worker
from services.teacher_scorer.engines import build_engine as build_scorer
from services.teacher_scorer.scheduler import Scheduler
from services.teacher_scorer.servicer import Limits, Servicer
from tests.conftest import Server
from tests.fuzz.mutations import NUMBERS, TEXTS, any_value, damaged, varied
from tests.fuzz.surface import HANG_SECONDS, Surface
from tests.services.rollout.fake_teacher import FakeTeacher, serving
from tests.tiny import Tiny

REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
MALFORMED = "DecodeError"
"""In gRPC's own answer to bytes that are no message."""
BODY = {
    "problem": "What is 1 plus 1?",
    "answer": "2",
    "solution": "",
    "temperature": 1.0,
    "max_tokens": 2,
    "seed": 1,
    "score": True,
}


class EventLoop:
    """An event loop in a thread, for surfaces that are asyncio servers."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HANG_SECONDS + 5)


class Grpc(Surface):
    """The calls of a real server with a real tiny model, as bytes on the wire."""

    name, share = "gRPC", 1

    def __init__(self, tiny: Tiny) -> None:
        config = load_config(tiny.write_config("fuzz-teacher"), (), {})
        self._events = EventLoop()
        self._events.run(self._start(config, load_tokenizer(config.teacher.path)))
        ids = np.arange(3, 40, dtype=np.int32)
        contexts = {"c0": ids, "eval+": ids[5:]}
        self._valid = convert.score_request("t", ids[:9], contexts, ScoreOptions(4, want_entropy=True))

    async def _start(self, config: Any, tokenizer: Any) -> None:
        engine = build_scorer(config.teacher)
        self._scheduler = Scheduler(engine, batch_tokens=4_096, max_waiting=16)
        limits = Limits(max_tokens=1_024, max_contexts=4, max_top_k=16)
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", 1 << 20)])
        servicer = Servicer(engine, self._scheduler, vocabulary(tokenizer), limits)
        add_TeacherScorerServicer_to_server(servicer, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        package = pb.DESCRIPTOR.services_by_name["TeacherScorer"].full_name
        self._methods = {name: self._channel.unary_unary(f"/{package}/{name}") for name in ("Score", "Describe")}
        self._stream = self._channel.stream_stream(f"/{package}/ScoreStream")

    def try_one(self, draw: random.Random) -> str:
        request = pb.ScoreRequest()
        request.CopyFrom(self._valid)
        if draw.random() < 0.6:
            change_message(request, draw)
            raw = request.SerializeToString()
        else:
            raw = damaged(request.SerializeToString(), draw)
        return str(self._events.run(self._call(draw.choice(("Score", "ScoreStream", "Describe")), raw)))

    async def _call(self, method: str, raw: bytes) -> str:
        try:
            if method == "ScoreStream":
                return await self._call_stream(raw)
            await self._methods[method](raw, timeout=HANG_SECONDS)
        except grpc.aio.AioRpcError as error:
            malformed = error.code() == grpc.StatusCode.UNKNOWN and MALFORMED in (error.details() or "")
            if error.code() not in REFUSALS and not malformed:
                raise
            return "malformed" if malformed else error.code().name
        return "accepted"

    async def _call_stream(self, raw: bytes) -> str:
        """The request between two valid ones, which are answered whatever it is."""
        valid = self._valid.SerializeToString()
        found = [
            pb.ScoreResponse.FromString(each) async for each in self._stream([valid, raw, valid], timeout=HANG_SECONDS)
        ]
        codes = [answer.error_code for answer in found]
        refusals = {code.value[0] for code in REFUSALS}
        assert len(codes) == 3, codes
        assert codes.count(0) >= 2, codes
        assert {0} | refusals >= set(codes), [answer.error for answer in found]
        return "accepted in a stream" if codes.count(0) == 3 else "refused in a stream"

    def close(self) -> None:
        for method in ("Score", "ScoreStream"):
            answer = self._events.run(self._call(method, self._valid.SerializeToString()))
            assert answer.startswith("accepted"), answer
        self._events.run(self._channel.close())
        self._events.run(self._server.stop(0))
        self._scheduler.stop()


def change_message(message: Any, draw: random.Random) -> None:
    """Set some fields of a protobuf message to unusual values of their types."""
    for field in message.DESCRIPTOR.fields:
        if draw.random() < 0.6:
            continue
        repeated = field.is_repeated
        if field.message_type is not None:
            if repeated:
                for _ in range(draw.choice((1, 1, 6))):
                    change_message(getattr(message, field.name).add(), draw)
            else:
                change_message(getattr(message, field.name), draw)
            continue
        value = _field_value(field, draw)
        if repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


def _field_value(field: Any, draw: random.Random) -> Any:
    if field.cpp_type == field.CPPTYPE_STRING and field.type == field.TYPE_BYTES:
        if draw.random() < 0.5:
            return draw.randbytes(draw.choice((0, 1, 4, 40, 6_000)))
        return np.asarray(
            [draw.choice((0, 5, 399, 400, -1, 2**31 - 1)) for _ in range(draw.randrange(9))], "<i4"
        ).tobytes()
    if field.cpp_type == field.CPPTYPE_STRING:
        return draw.choice(TEXTS).encode("utf-8", "replace").decode()
    if field.cpp_type == field.CPPTYPE_BOOL:
        return draw.random() < 0.5
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return float(draw.choice(NUMBERS[:7] + NUMBERS[8:]))
    bits = 31 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 63
    signed = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64)
    return draw.choice((0, 1, 7, 2**bits - 1, *((-1, -(2**bits)) if signed else ())))


class Http(Surface):
    """The HTTP API of a rollout: every path and method of its OpenAPI, and others."""

    name, share = "HTTP", 1

    def __init__(self, tiny: Tiny, server: Server) -> None:
        config = load_config(tiny.write_config("fuzz-rollout"), (), {})
        tokenizer = load_tokenizer(config.student.path)
        engine = build_engine(config.student.path, config.rollout, stop_ids=[2], max_model_len=300, seed=0)
        self._sampler = SamplingLoop(engine)
        self._events = EventLoop()
        self._events.run(self._start(config, tokenizer, server))

    async def _start(self, config: Any, tokenizer: Any, server: Server) -> None:
        teacher = FakeTeacher()
        self._serving = serving(teacher)
        await self._serving.__aenter__()
        self._teacher = TeacherClient([teacher.address], token="", deadline_seconds=HANG_SECONDS)
        worker = Worker(
            "fuzzed",
            queue=open_queue(server.url, "fuzz"),
            sampler=self._sampler,
            teacher=self._teacher,
            prompts=Prompts.configured(config, tokenizer, load_problems(config.data.train)),
            reader=FileReader(config.policies),
            max_in_flight=4,
            lease_seconds=30,
            max_failures=3,
        )
        app = create_app(worker, config.method, 2, "fuzz")
        self._paths = [(method, path) for path, methods in app.openapi()["paths"].items() for method in methods]
        transport = httpx.ASGITransport(app=app)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://rollout", timeout=HANG_SECONDS)

    def try_one(self, draw: random.Random) -> str:
        method, path = draw.choice(self._paths)
        if draw.random() < 0.1:
            path += draw.choice(("/", "/../x", "%00", "?a=b", "//"))
        if draw.random() < 0.1:
            method = draw.choice(("get", "put", "delete", "options", "head", "patch"))
        headers = {"content-type": draw.choice(("application/json", "application/json", "text/plain", "a" * 300))}
        if draw.random() < 0.2:
            headers["authorization"] = draw.choice(("Bearer x", "Basic eDp5", "Bearer", "%ff" * 9))
        body = varied(BODY, draw) if draw.random() < 0.7 else any_value(draw)
        raw = json.dumps(body).encode("utf-8", "replace")
        if draw.random() < 0.3:
            raw = damaged(raw, draw)
        return str(self._events.run(self._call(method, path, raw, headers)))

    async def _call(self, method: str, path: str, raw: bytes, headers: dict[str, str]) -> str:
        answer = await self._client.request(method, path, content=raw, headers=headers)
        if answer.status_code >= 500:
            raise AssertionError(f"HTTP {answer.status_code}: {answer.text[:200]}")
        return f"HTTP {answer.status_code}"

    def close(self) -> None:
        headers = {"content-type": "application/json"}
        answer = self._events.run(self._call("post", "/v1/generate", json.dumps(BODY).encode(), headers))
        assert answer == "HTTP 200", answer
        self._events.run(self._client.aclose())
        self._events.run(self._teacher.close())
        self._events.run(self._serving.__aexit__(None, None, None))
        self._sampler.stop()
