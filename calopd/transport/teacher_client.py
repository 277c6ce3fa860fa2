"""Client of the teacher: round robin over replicas, bounded calls in flight, retries."""

import asyncio
import itertools
import logging
import random
from collections.abc import Mapping, Sequence

import grpc
import numpy as np
from prometheus_client import Counter

from calopd.core.errors import EngineFailed, InvalidRequest, UnhealthyTeacher
from calopd.core.types import LOGPROBS_ONLY, ScoreOptions, Scores
from calopd.models.tokenizers import check_same_vocabulary, fingerprint
from calopd.transport import auth, convert
from calopd.transport.v1 import teacher_scorer_pb2
from calopd.transport.v1.teacher_scorer_pb2_grpc import TeacherScorerStub

log = logging.getLogger(__name__)

# Scoring has no side effects, so that every transient error is retried; a refused request is not.
# A server that is shutting down cancels calls that it has not accepted. Our own cancellation is not an RpcError.
RETRIED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
FAILURES = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
"""Possibly caused by the request: retried a few times, then raised."""
MAX_FAILURES = 8
TOO_LARGE = "larger than max"
"""Part of gRPC's error for a message beyond the size limit, which is not retried."""
CHANNEL_OPTIONS = [
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.max_receive_message_length", 256 * 2**20),
    ("grpc.max_send_message_length", 64 * 2**20),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.enable_http_proxy", 0),
]
retries = Counter("calopd_rollout_teacher_retries", "Retried calls to the teacher", ["reason"])


class TeacherClient:
    """Client of one or more teacher replicas. Use it from one event loop."""

    def __init__(
        self, addresses: Sequence[str], *, token: str = "", deadline_seconds: float = 600.0, in_flight: int = 64
    ) -> None:
        credentials = auth.channel_credentials()
        self._channels = [
            grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)
            if credentials
            else grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            for address in addresses
        ]
        self._all_stubs = [TeacherScorerStub(channel) for channel in self._channels]
        self._stubs = itertools.cycle(self._all_stubs)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._deadline = deadline_seconds
        self._slots = asyncio.Semaphore(in_flight)
        self._vocabulary_size = 0

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def check_vocabulary(self, student_vocabulary: Sequence[str]) -> list[convert.Description]:
        """Return the descriptions of all replicas; raises VocabularyMismatch if one has another vocabulary."""
        described = []
        for stub in self._all_stubs:
            answer = await stub.Describe(teacher_scorer_pb2.DescribeRequest(), metadata=self._metadata, timeout=30)
            if answer.vocabulary_fingerprint != fingerprint(student_vocabulary):
                request = teacher_scorer_pb2.DescribeRequest(with_vocabulary=True)
                full = await stub.Describe(request, metadata=self._metadata, timeout=30)
                check_same_vocabulary(student_vocabulary, list(full.vocabulary))
            self._vocabulary_size = answer.vocabulary_size
            described.append(convert.description_from_message(answer))
        return described

    async def score(
        self,
        trajectory_id: str,
        response_ids: np.ndarray,
        contexts: Mapping[str, np.ndarray],
        options: ScoreOptions = LOGPROBS_ONLY,
    ) -> Scores:
        """Return the scores of one response under all contexts; see `request_scores`."""
        return (await self.request_scores(trajectory_id, response_ids, contexts, options)).decode()

    async def request_scores(
        self,
        trajectory_id: str,
        response_ids: np.ndarray,
        contexts: Mapping[str, np.ndarray],
        options: ScoreOptions = LOGPROBS_ONLY,
    ) -> convert.ReceivedScores:
        """Request the scores of one response and check them; retries until a teacher can be reached and has room."""
        request = convert.score_request(trajectory_id, response_ids, contexts, options)
        failures = 0
        for attempt in itertools.count():
            try:
                async with self._slots:
                    stub = next(self._stubs)
                    message = await stub.Score(request, metadata=self._metadata, timeout=self._deadline)
                received = convert.ReceivedScores(message)
                received.check(request, self._vocabulary_size or 2**31)
                return received
            except grpc.aio.AioRpcError as error:
                code, details = error.code(), error.details() or ""
                if code == grpc.StatusCode.INVALID_ARGUMENT or TOO_LARGE in details:
                    raise InvalidRequest(details) from None
                failures += code in FAILURES
                if failures == MAX_FAILURES:
                    raise EngineFailed(f"{trajectory_id}: the teacher failed {failures} times: {details}") from None
                if code not in RETRIED:
                    raise
                await self._pause(attempt, code.name, details)
            except UnhealthyTeacher as error:
                await self._pause(attempt, "UNHEALTHY", str(error))
        raise AssertionError("unreachable")

    async def _pause(self, attempt: int, reason: str, details: str) -> None:
        """Try the next replica at once; when all have failed, wait before the next round."""
        retries.labels(reason).inc()
        attempt, place = divmod(attempt, len(self._all_stubs))
        if place < len(self._all_stubs) - 1:
            return
        seconds = min(10.0, 0.1 * 2**attempt) * random.uniform(0.5, 1.0)
        if attempt in (0, 4) or attempt % 20 == 0:
            log.warning("teacher: %s (%s); retrying, round %d, in %.1f s", reason, details, attempt + 2, seconds)
        await asyncio.sleep(seconds)
