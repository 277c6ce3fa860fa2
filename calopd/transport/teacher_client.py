"""Client of the teacher: round robin over replicas, bounded calls in flight, retries."""

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import grpc
import numpy as np
from prometheus_client import Counter

from calopd.core.errors import EngineFailed, InvalidRequest, ScoresRefused, UnhealthyTeacher
from calopd.core.types import LOGPROBS_ONLY, ScoreOptions, Scores
from calopd.transport import convert
from calopd.transport.replicas import ReplicaError, single_addresses
from calopd.transport.teacher_pin import TeacherChecks
from calopd.transport.teacher_replica import TeacherReplica

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
MAX_REFUSALS = 8
"""Refused scores of one response, from replicas that score the canary right."""
RESOLVE_SECONDS = 30.0
"""Age at which the addresses behind a name are looked up again."""
T = TypeVar("T")
retries = Counter("calopd_rollout_teacher_retries", "Retried calls to the teacher", ["reason"])


class TeacherClient:
    """Client of one or more teacher replicas. Use it from one event loop.

    A name that has several addresses is several replicas. With `checks` each is compared with the teacher of the run.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        token: str = "",
        deadline_seconds: float = 600.0,
        in_flight: int = 64,
        checks: TeacherChecks | None = None,
    ) -> None:
        self._addresses, self._token, self._deadline, self._checks = addresses, token, deadline_seconds, checks
        self._replicas: dict[str, TeacherReplica] = {}
        self._singles: dict[str, list[str]] = {}
        """Name -> the addresses that it had when it was last resolved."""
        self._resolved, self._resolving = float("-inf"), asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._turn = 0
        self._slots = asyncio.Semaphore(in_flight)
        self._vocabulary: Sequence[str] = ()
        self._watching: asyncio.Task[None] | None = None
        self._checking: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        for task in (self._watching, *self._checking.values()):
            if task is not None:
                task.cancel()
        for replica in self._replicas.values():
            await replica.close()

    @property
    def refused(self) -> dict[str, UnhealthyTeacher]:
        """Address -> reason of the replicas whose scores do not count."""
        return {address: r.refused for address, r in self._replicas.items() if r.refused is not None}

    async def check_vocabulary(self, student_vocabulary: Sequence[str]) -> list[convert.Description]:
        """Return the descriptions of the replicas that answer; raises VocabularyMismatch if one has another one."""
        self._vocabulary = student_vocabulary
        return await self._ask_all(lambda replica: replica.describe(student_vocabulary))

    async def check_replicas(self) -> None:
        """Compare all replicas with the teacher of the run, now and from now on; raises if none can be trusted.

        Those that do not answer are compared when they do.
        """
        await self._ask_all(self._check)
        if self._checks is not None and self._watching is None:
            self._watching = asyncio.create_task(self._watch(self._checks.every_seconds))
        if self.refused and not any(replica.is_trusted for replica in self._replicas.values()):
            raise next(iter(self.refused.values()))

    async def _check(self, replica: TeacherReplica) -> None:
        with contextlib.suppress(UnhealthyTeacher):
            await replica.check(self._vocabulary)

    async def _ask_all(self, ask: Callable[[TeacherReplica], Awaitable[T]]) -> list[T]:
        """The answers of all replicas that give one; raises the error of a replica that is down if all are."""
        answers: list[T] = []
        down: dict[str, grpc.aio.AioRpcError] = {}
        for replica in await self._all():
            try:
                answers.append(await ask(replica))
            except grpc.aio.AioRpcError as error:
                if error.code() not in RETRIED:
                    raise
                down[replica.address] = error
        if down and not answers:
            raise next(iter(down.values()))
        for address, failure in down.items():
            log.warning("the teacher at %s does not answer (%s): the others are used", address, failure.details())
        return answers

    async def _watch(self, every_seconds: float) -> None:
        while True:
            await asyncio.sleep(every_seconds)
            for replica in await self._all():
                if replica.address not in self._checking:  # one that does not answer delays no other one
                    self._checking[replica.address] = asyncio.create_task(self._check_again(replica))

    async def _check_again(self, replica: TeacherReplica) -> None:
        try:
            await replica.check(self._vocabulary)
        except (UnhealthyTeacher, grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            log.warning("teacher %s: %s", replica.address, error)
        except Exception:  # the watch goes on, whatever one check meets
            log.exception("teacher %s could not be checked", replica.address)
        finally:
            del self._checking[replica.address]

    async def _all(self) -> list[TeacherReplica]:
        """The replicas behind all names."""
        async with self._resolving:
            if time.monotonic() - self._resolved > RESOLVE_SECONDS:
                await self._resolve()
                self._resolved = time.monotonic()
        return list(self._replicas.values())

    async def _resolve(self) -> None:
        found: dict[str, str] = {}
        for address in self._addresses:
            try:
                single = await asyncio.to_thread(single_addresses, address)
                self._singles[address] = single
            except ReplicaError:  # the replicas may be up though their name is not: if not, they are unreachable too
                single = self._singles.get(address, [address])
            found |= {each: address.rpartition(":")[0] for each in single}
        for gone in self._replicas.keys() - found.keys():
            closing = asyncio.create_task(self._replicas.pop(gone).close(self._deadline))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        for address in found.keys() - self._replicas.keys():
            self._replicas[address] = TeacherReplica(
                address, found[address], token=self._token, deadline_seconds=self._deadline, checks=self._checks
            )

    async def _choose(self) -> TeacherReplica:
        """The next replica that can be trusted; those that cannot are checked again if there is no other."""
        replicas = await self._all()
        self._turn += 1
        ordered = [replicas[(self._turn + i) % len(replicas)] for i in range(len(replicas))]
        for replica in ordered:
            if replica.refused is None:
                if not replica.is_trusted:
                    await replica.check(self._vocabulary)
                return replica
        await ordered[0].check(self._vocabulary)
        return ordered[0]

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
        """Request the scores of one response and check them; retries until a teacher can be reached and has room.

        Raises ScoresRefused if the scores of this response are implausible again and again.
        """
        request = convert.score_request(trajectory_id, response_ids, contexts, options)
        failures = refusals = 0
        for attempt in itertools.count():
            replica = None
            try:
                async with self._slots:
                    replica = await self._choose()
                    failed_before = replica.failed_canaries
                    received = await replica.score(request)
                await replica.confirm_since(failed_before)
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
            except grpc.aio.UsageError as error:  # the channel was closed meanwhile: its address is gone
                if replica is not None and replica.address in self._replicas:
                    raise
                await self._pause(attempt, "GONE", str(error))
            except UnhealthyTeacher as error:
                refusals += await self._is_sound(replica)  # then this response is to blame, not the replica
                if refusals == MAX_REFUSALS:
                    raise ScoresRefused(f"the teacher's scores were refused {refusals} times: {error}") from None
                await self._pause(attempt, "UNHEALTHY", str(error))
        raise AssertionError("unreachable")

    async def _is_sound(self, replica: TeacherReplica | None) -> bool:
        """Whether a replica that answered implausibly scores the canary right, so that the response is to blame."""
        if replica is None or replica.refused is not None:
            return False
        try:
            await replica.confirm()
        except (UnhealthyTeacher, grpc.aio.AioRpcError, grpc.aio.UsageError):
            return False
        return True

    async def _pause(self, attempt: int, reason: str, details: str) -> None:
        """Try the next replica at once; when all have failed, wait before the next round."""
        retries.labels(reason).inc()
        count = max(1, len(self._replicas))
        attempt, place = divmod(attempt, count)
        if place < count - 1:
            return
        seconds = min(10.0, 0.1 * 2**attempt) * random.uniform(0.5, 1.0)
        if attempt in (0, 4) or attempt % 20 == 0:
            log.warning("teacher: %s (%s); retrying, round %d, in %.1f s", reason, details, attempt + 2, seconds)
        await asyncio.sleep(seconds)
