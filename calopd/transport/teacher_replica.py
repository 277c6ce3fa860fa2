"""One replica of the teacher, as a client sees it: its channel, and whether its scores can be trusted.

Scores count only after a canary that the same replica has scored later than them: a replica that turned bad, or that
answers with the scores of another request, is found out before anything of it is passed on.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

import grpc
import numpy as np
from prometheus_client import Gauge

from calopd.core.errors import UnhealthyTeacher, VocabularyMismatch
from calopd.models.tokenizers import check_same_vocabulary, fingerprint
from calopd.transport import auth, convert
from calopd.transport.teacher_pin import CANARY, ShortCanary, TeacherChecks, TeacherPin, short_canaries
from calopd.transport.v1 import teacher_scorer_pb2
from calopd.transport.v1.teacher_scorer_pb2_grpc import TeacherScorerStub

log = logging.getLogger(__name__)

CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", 256 * 2**20),
    ("grpc.max_send_message_length", 64 * 2**20),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),  # gRPC's two minutes would keep a restarted teacher waiting
    ("grpc.enable_http_proxy", 0),
]
DESCRIBE_SECONDS = 30.0
refused_replicas = Gauge(
    "calopd_rollout_teacher_refused", "1 if the scores of this replica are refused: not those of the run", ["replica"]
)


class TeacherReplica:
    """Use it from one event loop."""

    def __init__(
        self, address: str, name: str, *, token: str, deadline_seconds: float, checks: TeacherChecks | None
    ) -> None:
        credentials = auth.channel_credentials()
        named = [("grpc.ssl_target_name_override", name)] if credentials and not address.startswith(name) else []
        self._channel = (
            grpc.aio.secure_channel(address, credentials, options=[*CHANNEL_OPTIONS, *named])
            if credentials
            else grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        )
        self.address = address
        self._stub = TeacherScorerStub(self._channel)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._deadline, self._checks = deadline_seconds, checks
        self.description: convert.Description | None = None
        self._pinned: TeacherPin | None = None
        self.refused: UnhealthyTeacher | None = None
        """Why its scores do not count."""
        self.failed_canaries = 0
        self._turn = 0
        """The canary that was sent last."""
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    @property
    def is_trusted(self) -> bool:
        return self._checks is None or (self._pinned is not None and self.refused is None)

    async def close(self, grace_seconds: float | None = None) -> None:
        """Close the channel when its calls have ended, after `grace_seconds` at the latest."""
        await self._channel.close(grace_seconds)
        for task in (self._running, self._next):
            if task is not None:
                task.cancel()
        with contextlib.suppress(KeyError):
            refused_replicas.remove(self.address)

    async def describe(self, student_vocabulary: Sequence[str]) -> convert.Description:
        """Ask for its description; raises VocabularyMismatch if it has another vocabulary."""
        answer = await self._describe(with_vocabulary=False)
        # A vocabulary that was compared before is known by its fingerprint: that of the student takes long to compute.
        known = self.description.vocabulary_fingerprint if self.description else fingerprint(student_vocabulary)
        if answer.vocabulary_fingerprint != known:
            full = await self._describe(with_vocabulary=True)
            check_same_vocabulary(student_vocabulary, list(full.vocabulary))
        self.description = answer
        return answer

    async def _describe(self, *, with_vocabulary: bool) -> convert.Description:
        request = teacher_scorer_pb2.DescribeRequest(with_vocabulary=with_vocabulary)
        answer = await self._stub.Describe(request, metadata=self._metadata, timeout=DESCRIBE_SECONDS)
        return convert.description_from_message(answer)

    async def score(self, request: teacher_scorer_pb2.ScoreRequest) -> convert.ReceivedScores:
        """Score once; raises UnhealthyTeacher if the answer is not one to this request, or not plausible."""
        try:
            message = await self._stub.Score(request, metadata=self._metadata, timeout=self._deadline)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.DATA_LOSS:  # the replica has found that itself
                raise UnhealthyTeacher(error.details()) from None
            raise
        received = convert.ReceivedScores(message)
        size = self.description.vocabulary_size if self.description else 2**31
        received.check(request, size, self._pinned.revision if self._pinned else "")
        return received

    async def confirm_since(self, failed_canaries: int) -> None:
        """Wait for the canary after an answer; raises UnhealthyTeacher if one failed since the request was sent."""
        await self.confirm()
        if self.failed_canaries != failed_canaries:
            raise UnhealthyTeacher("the replica failed a canary while it scored this response")

    async def check(self, student_vocabulary: Sequence[str]) -> None:
        """Compare it with the teacher that is pinned in the run; raises UnhealthyTeacher if it is another one."""
        if self._checks is None:
            return
        try:
            await self.describe(student_vocabulary)
        except VocabularyMismatch as error:
            self._refuse(UnhealthyTeacher(str(error)))
            raise UnhealthyTeacher(str(error)) from None
        await self.confirm()

    async def confirm(self) -> None:
        """Wait for a canary that is sent after this call; raises UnhealthyTeacher if its scores are wrong."""
        if self._checks is None:
            return
        if self._next is None:
            self._next = asyncio.create_task(self._canary_after(self._running))
            self._next.add_done_callback(_retrieve)
        await asyncio.shield(self._next)

    async def _canary_after(self, running: "asyncio.Task[None] | None") -> None:
        """One canary at a time; all that ask while it is under way share the next one."""
        if running is not None:
            await asyncio.wait((running,))
        self._running, self._next = asyncio.current_task(), None
        assert self._checks is not None
        try:
            assert self.description is not None, "describe it first"
            dtype, canaries = self.description.dtype, short_canaries(self._checks.canary_ids)
            if self._pinned is None:
                scored = [await self._score_canary(each) for each in canaries]
                rows = tuple(tuple(row.tolist()) for _, row in scored)
                self._pinned = await self._checks.pin(TeacherPin(scored[0][0], dtype, rows))
                for number, (revision, row) in enumerate(scored):
                    self._pinned.check(revision, dtype, number, row)
            self._turn = (self._turn + 1) % len(canaries)
            revision, row = await self._score_canary(canaries[self._turn])
            self._pinned.check(revision, dtype, self._turn, row)
        except UnhealthyTeacher as error:
            self._refuse(error)
            raise
        if self.refused is not None:
            log.warning("the teacher at %s is accepted again", self.address)
        self.refused = None
        refused_replicas.labels(self.address).set(0)

    def _refuse(self, error: UnhealthyTeacher) -> None:
        self.failed_canaries += 1
        if self.refused is None:
            log.error("the teacher at %s is refused: %s", self.address, error)
        self.refused = error
        refused_replicas.labels(self.address).set(1)

    async def _score_canary(self, canary: ShortCanary) -> tuple[str, np.ndarray]:
        """Revision and scores."""
        received = await self.score(convert.score_request(CANARY, canary.response_ids, {CANARY: canary.prompt_ids}))
        (row,) = received.decode().logprobs
        return received.message.teacher_revision, row


def _retrieve(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()  # also if nobody waits for it any more
