"""The gRPC service: validates requests, delegates to the scheduler, maps errors to status codes."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from calopd.core.contexts import BASE, CONTEXTS
from calopd.core.errors import (
    CalopdError,
    Draining,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    ScoresRefused,
    UnhealthyTeacher,
)
from calopd.core.score_checks import check_scores
from calopd.core.types import LOGPROBS_ONLY, Scores
from calopd.models.devices import dtype_name
from calopd.models.tokenizers import fingerprint
from calopd.transport import auth, convert
from calopd.transport.teacher_pin import is_canary
from calopd.transport.v1 import teacher_scorer_pb2 as pb
from calopd.transport.v1.teacher_scorer_pb2_grpc import TeacherScorerServicer
from services.teacher_scorer import prometheus
from services.teacher_scorer.engines.scoring_engine import ScoringEngine, SequenceToScore
from services.teacher_scorer.fair_queue import TimedScores
from services.teacher_scorer.scheduler import Scheduler

log = logging.getLogger(__name__)

STATUS: dict[type[CalopdError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    EngineFailed: grpc.StatusCode.INTERNAL,
    ScoresRefused: grpc.StatusCode.DATA_LOSS,
    UnhealthyTeacher: grpc.StatusCode.UNAVAILABLE,
    Draining: grpc.StatusCode.UNAVAILABLE,
}

STREAM_IN_FLIGHT = 64
MAX_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Largest values that one request may have."""

    max_tokens: int
    """Prompt and response together."""
    max_contexts: int
    max_top_k: int


def context_label(name: str) -> str:
    """The label of a context in Prometheus. Unknown names share one: a client must not create labels."""
    return name if name == BASE or name in CONTEXTS else "other"


class Servicer(TeacherScorerServicer):
    def __init__(self, engine: ScoringEngine, scheduler: Scheduler, vocabulary: Sequence[str], limits: Limits) -> None:
        self._engine, self._scheduler, self._vocabulary, self._limits = engine, scheduler, list(vocabulary), limits
        self.unhealthy: UnhealthyTeacher | None = None
        self.draining = False
        self._open = 0
        self._idle = asyncio.Event()

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        description = convert.Description(
            model=self._engine.model,
            revision=self._engine.revision,
            engine=self._engine.name,
            vocabulary_fingerprint=fingerprint(self._vocabulary),
            vocabulary_size=self._engine.vocabulary_size,
            max_tokens=self._limits.max_tokens,
            max_contexts=self._limits.max_contexts,
            max_top_k=self._limits.max_top_k,
            dtype=dtype_name(self._engine.dtype),
            vocabulary=tuple(self._vocabulary) if request.with_vocabulary else (),
        )
        return convert.description_to_message(description)

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        try:
            return await self._score(request, context.peer())
        except CalopdError as error:
            prometheus.refused.labels(type(error).__name__).inc()
            await context.abort(STATUS[type(error)], str(error))
            raise AssertionError("abort raises") from None

    async def ScoreStream(
        self, requests: AsyncIterator[pb.ScoreRequest], context: Any
    ) -> AsyncIterator[pb.ScoreResponse]:
        """Score up to STREAM_IN_FLIGHT requests at once; send each answer when it is complete.

        Bytes that are no request end the stream, after the answers to those before them.
        """
        answers: asyncio.Queue[pb.ScoreResponse | None] = asyncio.Queue()
        slots = asyncio.Semaphore(STREAM_IN_FLIGHT)

        async def answer(request: pb.ScoreRequest) -> None:
            try:
                await answers.put(await self._score_or_error(request, context.peer()))
            finally:
                slots.release()

        async def read() -> str:
            async with asyncio.TaskGroup() as tasks:
                try:
                    async for request in requests:
                        await slots.acquire()
                        tasks.create_task(answer(request))
                except DecodeError as error:
                    return f"a request of the stream cannot be read: {error}"
            return ""

        reader = asyncio.create_task(read())
        # Also if it ends with an error, which `result` then raises: nobody may wait for answers that never come.
        reader.add_done_callback(lambda done: answers.put_nowait(None))
        try:
            while (response := await answers.get()) is not None:
                yield response
            if malformed := reader.result():
                prometheus.refused.labels(DecodeError.__name__).inc()
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, malformed)
        finally:
            reader.cancel()

    async def _score_or_error(self, request: pb.ScoreRequest, client: str) -> pb.ScoreResponse:
        try:
            return await self._score(request, client)
        except CalopdError as error:
            prometheus.refused.labels(type(error).__name__).inc()
            return _error(request, STATUS[type(error)], str(error))
        except Exception as error:  # a defect: the other requests of the stream are answered all the same
            log.exception("a request failed")
            prometheus.refused.labels(type(error).__name__).inc()
            return _error(request, grpc.StatusCode.INTERNAL, repr(error))

    async def _score(self, request: pb.ScoreRequest, client: str = "") -> pb.ScoreResponse:
        if self.draining:
            raise Draining("this replica is shutting down: send the request to another one")
        if self.unhealthy is not None:
            raise self.unhealthy
        sequences = self._validated(request)
        self._open += 1
        try:
            scored = await self._scheduler.score(sequences, client=client, urgent=is_canary(request))
            start = time.perf_counter()
            message = self._message(request, sequences, scored)
            prometheus.phase_seconds.labels("encode").inc(time.perf_counter() - start)
            return message
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def drain(self) -> None:
        """Refuse new requests, and wait until the accepted ones are answered."""
        self.draining = True
        if self._open:
            self._idle.clear()
            await self._idle.wait()

    def _message(
        self, request: pb.ScoreRequest, sequences: list[SequenceToScore], scored: list[TimedScores]
    ) -> pb.ScoreResponse:
        try:
            for part in scored:
                check_scores(part.scores.logprobs, len(sequences[0].response_ids), self._engine.vocabulary_size)
        except UnhealthyTeacher as error:  # of this response; the canary tells whether the replica is unhealthy
            raise ScoresRefused(str(error)) from None
        for item in request.contexts:
            prometheus.tokens.labels(context_label(item.name)).inc(len(sequences[0].response_ids))
        first = scored[0].scores
        scores = Scores(
            names=tuple(item.name for item in request.contexts),
            logprobs=np.stack([part.scores.logprobs for part in scored]),
            teacher_revision=self._engine.revision,
            seconds=sum(part.seconds for part in scored),
            top_k=first.top_k,
            entropy=first.entropy,
            activity=self._scheduler.clock.read(),
        )
        return convert.scores_to_message(request.trajectory_id, scores)

    def _validated(self, request: pb.ScoreRequest) -> list[SequenceToScore]:
        limits = self._limits
        names = [item.name for item in request.contexts]
        if not 1 <= len(names) <= limits.max_contexts:
            raise InvalidRequest(f"{len(names)} contexts given, expected 1 to {limits.max_contexts}")
        if max(map(len, (request.trajectory_id, *names))) > MAX_NAME:
            raise InvalidRequest(f"a context name or trajectory_id has more than {MAX_NAME} characters")
        if len(set(names)) < len(names):
            raise InvalidRequest(f"context names {names} are not unique")
        options = convert.score_options_from_message(request.options)
        if options.top_k > limits.max_top_k:
            raise InvalidRequest(f"top_k is {options.top_k}, the limit is {limits.max_top_k}")
        response = self._ids(request.response_ids, "response_ids")
        sequences = []
        for number, item in enumerate(request.contexts):
            prompt = self._ids(item.prompt_ids, f"prompt_ids of context {item.name!r}")
            if len(prompt) + len(response) > limits.max_tokens:
                raise InvalidRequest(
                    f"context {item.name!r}: {len(prompt)} + {len(response)} tokens, the limit is {limits.max_tokens}"
                )
            sequences.append(SequenceToScore(prompt, response, options if number == 0 else LOGPROBS_ONLY))
        return sequences

    def _ids(self, raw: bytes, what: str) -> np.ndarray:
        ids = convert.from_bytes(raw, convert.IDS, what)
        if not len(ids):
            raise InvalidRequest(f"{what} is empty, expected at least one id")
        if ids.min() < 0 or ids.max() >= self._engine.vocabulary_size:
            wrong = int(ids[(ids < 0) | (ids >= self._engine.vocabulary_size)][0])
            raise InvalidRequest(f"{what} contains the id {wrong}, expected 0 to {self._engine.vocabulary_size - 1}")
        return ids


def _error(request: pb.ScoreRequest, code: grpc.StatusCode, reason: str) -> pb.ScoreResponse:
    return pb.ScoreResponse(trajectory_id=request.trajectory_id, error=reason, error_code=code.value[0])


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without the bearer token, except health and reflection."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}"

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        given = dict(handler_call_details.invocation_metadata or ()).get("authorization", "")
        if not handler_call_details.method.startswith("/calopd.") or auth.is_valid(str(given), self._expected):
            return await continuation(handler_call_details)
        return _refuse(handler_call_details.method.endswith("Stream"))


def _refuse(streaming: bool) -> grpc.RpcMethodHandler:
    prometheus.refused.labels("Unauthenticated").inc()
    message = "no or wrong token: send the metadata `authorization: Bearer <CALOPD_TOKEN>`"

    async def unary(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)

    async def stream(requests: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)
        yield

    if streaming:
        return grpc.stream_stream_rpc_method_handler(stream)
    return grpc.unary_unary_rpc_method_handler(unary)
