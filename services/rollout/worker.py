"""The worker: claims tickets, samples responses, requests their scores and commits trajectories.

A worker claims what its engine samples at once, and no more than its share of a step: the other tickets are for the
other workers. A response that is complete makes room for the next one, while its scores are still under way.

There may be any number of workers, and each may be killed at any time; one that is asked to stop gives its tickets
back. Tickets of evaluations are claimed only while
nothing is being sampled for a step. When a ticket of a step or a new policy arrives, they are given back, and their
incomplete responses are dropped.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from calopd.core.errors import ConfigError, EngineFailed, InvalidRequest, PolicyError, ScoresRefused
from calopd.core.types import Ticket, Trajectory
from calopd.local.entry_point import tell_progress
from calopd.models.prompts import Prompts
from calopd.rundir.policy_transport import PolicyReader
from calopd.transport.convert import ReceivedScores
from calopd.transport.queue import Claim, Queue
from calopd.transport.teacher_client import TeacherClient
from services.rollout import prometheus
from services.rollout.loaded_policy import LoadedPolicy
from services.rollout.sampler import SamplingLoop
from services.rollout.step_share import WHOLE_STEP, StepShare
from services.rollout.trajectory_writer import ALONE_FROM, TrajectoryWriter
from services.rollout.turns import Turns

log = logging.getLogger(__name__)

SCORED_PER_SAMPLED = 4
"""Tickets that a worker holds at most, as a multiple of those that it samples at once: the teacher may be behind."""
CRASHES_ALONE = 3
"""Ends of the process while it sampled one ticket alone, after which that ticket is dead-lettered."""

STOP_SECONDS = 4.0
"""Time to give tickets back at the end, if Redis does not answer."""


class Worker:
    def __init__(
        self,
        name: str,
        *,
        queue: Queue,
        sampler: SamplingLoop,
        teacher: TeacherClient,
        prompts: Prompts,
        reader: PolicyReader,
        max_in_flight: int,
        lease_seconds: float,
        max_failures: int,
        share: StepShare = WHOLE_STEP,
        upcoming: Callable[[int], list[str]] | None = None,
    ) -> None:
        self.name = name
        self.queue, self.sampler, self.teacher = queue, sampler, teacher
        self.prompts = prompts
        self.max_in_flight, self.lease_seconds, self.max_failures = max_in_flight, lease_seconds, max_failures
        self._share, self._upcoming = share, upcoming
        self._workers = 1
        self._active: dict[str, Claim] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._evaluations: set[asyncio.Task[None]] = set()
        self._urgent: set[str] = set()
        """Ids of the tickets of steps whose response is not complete."""
        self._room = asyncio.Event()
        """Set when a response is complete or a ticket is done."""
        self.policy = LoadedPolicy(queue, sampler, reader)
        self.turns = Turns()
        self._writer = TrajectoryWriter(
            name, queue=queue, sampler=sampler, teacher=teacher, prompts=prompts, policy=self.policy, turns=self.turns
        )
        self._prefetched = 0
        """The step whose prompts have been rendered ahead of its tickets."""
        self._ending = False
        self._claiming: asyncio.Task[list[Claim]] | None = None

    async def run(self) -> None:
        """Work until cancelled."""
        await asyncio.to_thread(self.queue.join)
        helpers = [
            asyncio.create_task(helper()) for helper in (self._keep_claims, self._follow_policies, self._show_life)
        ]
        try:
            mine = await asyncio.to_thread(self.queue.own_claims, self.name)
            # The claims of evaluations expire: they are not urgent, and one of them may have crashed this worker.
            self._start([claim for claim in mine if not claim.ticket.is_evaluation], again=True)
            loop = asyncio.get_running_loop()
            look_for_abandoned = loop.time() + self.lease_seconds
            while not self.sampler.failed:
                for helper in filter(asyncio.Task.done, helpers):
                    helper.result()
                free = self._free()
                if free <= 0:
                    self._room.clear()
                    with contextlib.suppress(TimeoutError):  # a failed engine completes nothing
                        async with asyncio.timeout(1.0):  # wait_for of Python 3.11 may swallow a cancellation
                            await self._room.wait()
                    continue
                self._start(await self._claim(self.queue.claim, self.name, free, 0.5))
                free = self.max_in_flight - len(self._active)
                abandoned = free > 0 and loop.time() > look_for_abandoned
                if abandoned:
                    look_for_abandoned = loop.time() + self.lease_seconds / 2
                    await self._take_over(free, evaluations=False)
                if free > 0 and not self._urgent and not self._refuses_work:
                    self._start(await self._claim(self.queue.claim_evaluations, self.name, free))
                    if abandoned:
                        await self._take_over(free, evaluations=True)
            raise EngineFailed(self.sampler.failure or "the thread of the sampling engine has ended: see its log")
        except asyncio.CancelledError:
            if not self.sampler.failed and self.sampler.heartbeat.stalled is None:
                with contextlib.suppress(TimeoutError):  # then the claims expire
                    async with asyncio.timeout(STOP_SECONDS):
                        await self._give_all_back()
            raise
        finally:
            self._ending = True
            for task in (*helpers, *self._tasks):
                task.cancel()

    async def _claim(self, claim: Callable[..., list[Claim]], *arguments: Any, **options: Any) -> list[Claim]:
        """Claim in a thread, which is waited for when the worker stops: what it claims must not be forgotten."""
        self._claiming = asyncio.create_task(asyncio.to_thread(claim, *arguments, **options))
        return await asyncio.shield(self._claiming)

    async def _give_all_back(self) -> None:
        """Stop, and free all tickets: a worker that is asked to stop has not failed at them."""
        self._ending = True
        for task in self._tasks:
            task.cancel()
        if under_way := [task for task in (*self._tasks, self._claiming) if task is not None]:
            await asyncio.wait(under_way)
        claims = await asyncio.to_thread(self.queue.own_claims, self.name)
        for claim in claims:
            await self._give_back(claim)
        log.info("stopped: %d tickets are given back", len(claims))

    def _free(self) -> int:
        """Tickets of steps that this worker may claim: what the engine has room for, within its share of a step."""
        if self._refuses_work:
            return 0
        sampling = min(self.max_in_flight, self._share.of(self._workers)) - len(self._urgent)
        waiting = SCORED_PER_SAMPLED * self.max_in_flight - len(self._active) + len(self._evaluations)
        return min(sampling, waiting)

    @property
    def _refuses_work(self) -> bool:
        """Whether new tickets are better off with another worker."""
        stalled, unreadable = self.sampler.heartbeat.stalled, self.policy.unreadable
        return stalled is not None or unreadable is not None or self.turns.waiting_alone > 0

    async def _take_over(self, count: int, *, evaluations: bool) -> None:
        claims = await self._claim(
            self.queue.claim_abandoned, self.name, count, self.lease_seconds, evaluations=evaluations
        )
        if claims:
            log.warning("took over %d abandoned tickets", len(claims))
        self._start(claims, again=True)

    def _start(self, claims: list[Claim], *, again: bool = False) -> None:
        """Work on claims; `again`: they may have been claimed before."""
        if not claims:
            return
        if any(not claim.ticket.is_evaluation for claim in claims):
            self._preempt()
        for claim in claims:
            if claim.entry not in self._active:
                self._active[claim.entry] = claim
                self.sampler.clock.hold(len(self._active))
                task = self._spawn(self._work(claim, again))
                task.add_done_callback(functools.partial(self._finished, claim))
                if claim.ticket.is_evaluation:
                    self._evaluations.add(task)
                    task.add_done_callback(self._evaluations.discard)
                else:
                    self._urgent.add(claim.ticket.id)
        if self._upcoming is not None:
            steps = [claim.ticket.step for claim in claims if not claim.ticket.is_evaluation]
            if steps and max(steps) + 1 > self._prefetched:
                self._prefetched = max(steps) + 1
                self._writer.executor.submit(self.prompts.prefetch, self._upcoming(self._prefetched))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _finished(self, claim: Claim, task: "asyncio.Task[None]") -> None:
        """Forget a claim; also called if its task was cancelled before it started."""
        self._active.pop(claim.entry, None)
        self.sampler.clock.hold(len(self._active))
        self._urgent.discard(claim.ticket.id)
        self._room.set()
        if task.cancelled() and claim.ticket.is_evaluation and not self._ending:
            self._spawn(self._give_back(claim))

    async def _give_back(self, claim: Claim) -> None:
        await asyncio.to_thread(self.queue.give_back, claim)
        prometheus.trajectories.labels("given back").inc()

    def _preempt(self) -> None:
        """Give back the tickets of evaluations: a step needs the engine."""
        for task in self._evaluations:
            task.cancel()
        self.sampler.preempt()

    async def _keep_claims(self) -> None:
        while True:
            self._workers = await asyncio.to_thread(self.queue.active_workers, self.lease_seconds)
            await asyncio.sleep(self.lease_seconds / 3)
            if self.sampler.heartbeat.stalled is not None:
                continue  # the tickets go to another worker
            await asyncio.to_thread(self.queue.renew, self.name, list(self._active.values()))

    async def _show_life(self) -> None:
        """Show that the event loop runs."""
        while True:
            self.sampler.heartbeat.enter(self, "the event loop")
            await asyncio.sleep(1.0)

    async def _follow_policies(self) -> None:
        """Load announced policies, so that the first ticket of a step does not wait for its policy.

        Also recover if a policy could not be loaded: until then nothing is claimed.
        """
        last = "0-0"
        while True:
            if self.policy.unreadable is not None and not self._urgent:
                with contextlib.suppress(PolicyError):
                    await self.policy.recover()
            announced = await asyncio.to_thread(self.queue.wait_for_policy, last, 1.0)
            if announced is None:
                continue
            last, version = announced.entry, announced.version
            if version < self.sampler.policy_version or self._urgent:
                # An old announcement, or responses are being sampled: the first ticket that needs the policy loads it.
                continue
            self._preempt()
            try:
                await self.policy.ensure(version, announced.sha256)
            except PolicyError as error:
                log.warning("announced policy %d: %s", version, error)

    async def _work(self, claim: Claim, again: bool) -> None:
        try:
            alone = again and await self._may_crash(claim)
            trajectory, scores = await self.write(claim.ticket, alone=claim if alone else None)
            fresh = await asyncio.to_thread(self.queue.commit, claim, trajectory, scores)
            prometheus.trajectories.labels("committed" if fresh else "duplicate").inc()
            if not fresh:
                log.info("the result of ticket %s was dropped: it has one, or was withdrawn", claim.ticket.id)
            tell_progress()
        except (InvalidRequest, ConfigError, ScoresRefused) as error:
            await self._dead_letter(claim, str(error))
        except PolicyError as error:
            log.warning("ticket %s is given back: %s", claim.ticket.id, error)
            if not await self._failed(claim, error):
                await self._give_back(claim)
        except Exception as error:  # not caused by the ticket: its claim expires, and a worker retries it
            log.exception("ticket %s failed and will be retried", claim.ticket.id)
            if not self.sampler.failed:
                await self._failed(claim, error)

    async def _may_crash(self, claim: Claim) -> bool:
        """Whether a ticket that was claimed before must be sampled alone; dead-letter one that crashed so."""
        crashes = await asyncio.to_thread(self.queue.count_attempt, claim, "alone", 0)
        if crashes >= CRASHES_ALONE:
            how = f"ended {crashes} times, crashed or killed"
            raise InvalidRequest(f"the sampling process {how}, while it sampled this response alone")
        return await asyncio.to_thread(self.queue.deliveries, claim) >= ALONE_FROM

    async def _failed(self, claim: Claim, error: Exception) -> bool:
        """Count a failure; True if it was one too many and the ticket is dead-lettered."""
        prometheus.failures.labels(type(error).__name__).inc()
        if await asyncio.to_thread(self.queue.count_attempt, claim, "failed") < self.max_failures:
            return False
        await self._dead_letter(claim, f"failed {self.max_failures} times, the last time with: {error!r}")
        return True

    async def _dead_letter(self, claim: Claim, reason: str) -> None:
        log.error("ticket %s is dead-lettered: %s", claim.ticket.id, reason)
        await asyncio.to_thread(self.queue.dead_letter, claim, reason)
        prometheus.trajectories.labels("dead").inc()

    async def write(self, ticket: Ticket, alone: Claim | None = None) -> tuple[Trajectory, ReceivedScores | None]:
        """Return the trajectory of a ticket, and its scores; see `TrajectoryWriter`."""

        def sampled() -> None:
            self._urgent.discard(ticket.id)
            self._room.set()

        return await self._writer.write(ticket, sampled, alone)
