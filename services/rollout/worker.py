"""The worker: claims tickets, samples responses, requests their scores and commits trajectories.

A worker claims what its engine samples at once, and no more than its share of a step: the other tickets are for the
other workers. A response that is complete makes room for the next one, while its scores are still under way.

There may be any number of workers, and each may be killed at any time. Tickets of evaluations are claimed only while
nothing is being sampled for a step. When a ticket of a step or a new policy arrives, they are given back, and their
incomplete responses are dropped.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from calopd.core.contexts import BASE
from calopd.core.errors import ConfigError, InvalidRequest, PolicyError
from calopd.core.types import Problem, Sample, Ticket, Trajectory
from calopd.data.answers import answered_after_think, is_correct
from calopd.models.prompts import Prompts
from calopd.rundir.policy_transport import PolicyReader
from calopd.tracking.trace import task_span
from calopd.transport.convert import ReceivedScores
from calopd.transport.queue import Claim, Queue
from calopd.transport.teacher_client import TeacherClient
from services.rollout import prometheus
from services.rollout.engines.sampling_engine import SampleRequest
from services.rollout.loaded_policy import LoadedPolicy
from services.rollout.sampler import SamplingLoop, WrongPolicy
from services.rollout.step_share import WHOLE_STEP, StepShare

log = logging.getLogger(__name__)

SCORED_PER_SAMPLED = 4
"""Tickets that a worker holds at most, as a multiple of those that it samples at once: the teacher may be behind."""


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
        max_deliveries: int,
        share: StepShare = WHOLE_STEP,
        upcoming: Callable[[int], list[str]] | None = None,
    ) -> None:
        self.name = name
        self.queue, self.sampler, self.teacher = queue, sampler, teacher
        self.prompts = prompts
        self.max_in_flight, self.lease_seconds, self.max_deliveries = max_in_flight, lease_seconds, max_deliveries
        self._share, self._upcoming = share, upcoming
        self._workers = 1
        self._active: dict[str, Claim] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._evaluations: set[asyncio.Task[None]] = set()
        self._urgent: set[str] = set()
        """Ids of the tickets of steps whose response is not complete."""
        self._room = asyncio.Event()
        """Set when a response is complete or a ticket is done."""
        self._policy = LoadedPolicy(queue, sampler, reader)
        self._judges = ThreadPoolExecutor(2, "answers")
        self._prefetched = 0
        """The step whose prompts have been rendered ahead of its tickets."""
        self._ending = False

    async def run(self) -> None:
        """Work until cancelled."""
        await asyncio.to_thread(self.queue.join)
        helpers = [asyncio.create_task(self._keep_claims()), asyncio.create_task(self._follow_policies())]
        try:
            for claim in (mine := await asyncio.to_thread(self.queue.own_claims, self.name)):
                if claim.ticket.is_evaluation:
                    await asyncio.to_thread(self.queue.give_back, claim)
            self._start([claim for claim in mine if not claim.ticket.is_evaluation], again=True)
            loop = asyncio.get_running_loop()
            look_for_abandoned = loop.time() + self.lease_seconds
            while not self.sampler.failed:
                for helper in helpers:
                    if helper.done():
                        helper.result()
                free = self._free()
                if free <= 0:
                    self._room.clear()
                    # With a timeout, because a failed engine completes nothing.
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._room.wait(), 1.0)
                    continue
                self._start(await asyncio.to_thread(self.queue.claim, self.name, free, 0.5))
                free = self.max_in_flight - len(self._active)
                abandoned = free > 0 and loop.time() > look_for_abandoned
                if abandoned:
                    look_for_abandoned = loop.time() + self.lease_seconds / 2
                    await self._take_over(free, evaluations=False)
                if free > 0 and not self._urgent:
                    self._start(await asyncio.to_thread(self.queue.claim_evaluations, self.name, free))
                    if abandoned:
                        await self._take_over(free, evaluations=True)
            raise RuntimeError("the sampling engine has failed")
        finally:
            self._ending = True
            for task in (*helpers, *self._tasks):
                task.cancel()

    def _free(self) -> int:
        """Tickets of steps that this worker may claim: what the engine has room for, within its share of a step."""
        sampling = min(self.max_in_flight, self._share.of(self._workers)) - len(self._urgent)
        waiting = SCORED_PER_SAMPLED * self.max_in_flight - len(self._active) + len(self._evaluations)
        return min(sampling, waiting)

    async def _take_over(self, count: int, *, evaluations: bool) -> None:
        claims = await asyncio.to_thread(
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
                self._judges.submit(self.prompts.prefetch, self._upcoming(self._prefetched))

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
            await asyncio.to_thread(self.queue.renew, self.name, list(self._active.values()))

    async def _follow_policies(self) -> None:
        """Load announced policies, so that the first ticket of a step does not wait for its policy."""
        last = "0-0"
        while True:
            announced = await asyncio.to_thread(self.queue.wait_for_policy, last, 1.0)
            if announced is None:
                continue
            last, version = announced.entry, announced.version
            if version < self.sampler.policy_version or self._urgent:
                # An old announcement, or responses are being sampled: the first ticket that needs the policy loads it.
                continue
            self._preempt()
            try:
                await self._policy.ensure(version, announced.sha256)
            except PolicyError as error:
                log.warning("announced policy %d: %s", version, error)

    async def _work(self, claim: Claim, again: bool) -> None:
        try:
            if again and await asyncio.to_thread(self.queue.deliveries, claim) > self.max_deliveries:
                raise InvalidRequest(f"claimed more than {self.max_deliveries} times without a result")
            trajectory, scores = await self.write(claim.ticket)
            fresh = await asyncio.to_thread(self.queue.commit, claim, trajectory, scores)
            prometheus.trajectories.labels("committed" if fresh else "duplicate").inc()
        except (InvalidRequest, ConfigError) as error:
            log.error("ticket %s is dead-lettered: %s", claim.ticket.id, error)
            await asyncio.to_thread(self.queue.dead_letter, claim, str(error))
            prometheus.trajectories.labels("dead").inc()
        except Exception as error:  # not caused by the ticket: its claim expires, and a worker retries it
            log.exception("ticket %s failed and will be retried", claim.ticket.id)
            prometheus.failures.labels(type(error).__name__).inc()

    async def write(self, ticket: Ticket) -> tuple[Trajectory, ReceivedScores | None]:
        """Return the trajectory of a ticket, without scores, and the scores as the teacher sent them."""
        problem = self.prompts.problems.get(ticket.problem_id)
        if problem is None:
            raise InvalidRequest(f"problem {ticket.problem_id!r} is in neither data.train nor data.heldout")
        prompt_ids = self.prompts.ids(problem)
        with prometheus.sample_seconds.time():
            sample = await self._sample(ticket, prompt_ids)
        self._urgent.discard(ticket.id)
        self._room.set()
        # In another thread: some answers take seconds to check, and leases must be renewed meanwhile.
        judged = asyncio.get_running_loop().run_in_executor(self._judges, self._judge, sample, problem)
        scores = None
        if ticket.contexts:
            prompts = {
                name: prompt_ids if name == BASE else self.prompts.ids(problem, name) for name in ticket.contexts
            }
            waiting = task_span("wait for scores", ticket=ticket.id)
            with prometheus.scoring.track_inprogress(), prometheus.score_seconds.time(), waiting:
                scores = await self.teacher.request_scores(
                    ticket.id, sample.response_ids, prompts, ticket.score_options
                )
        correct, after_think = await judged
        trajectory = Trajectory(
            ticket=ticket,
            prompt_ids=prompt_ids,
            sample=sample,
            scores=None,
            correct=correct,
            answered_after_think=after_think,
            sampler=self.sampler.name,
            worker=self.name,
            activity=self.sampler.clock.read(),
        )
        return trajectory, scores

    def _judge(self, sample: Sample, problem: Problem) -> tuple[bool, bool]:
        text = self.prompts.decode(sample.response_ids)
        return is_correct(text, problem.answer), answered_after_think(text)

    async def _sample(self, ticket: Ticket, prompt_ids: np.ndarray) -> Sample:
        while True:
            version, sha256 = await self._policy_of(ticket)
            await self._policy.ensure(version, sha256)
            request = SampleRequest(prompt_ids, ticket.sampling, ticket.seed, version, preemptible=ticket.is_evaluation)
            try:
                return await asyncio.wrap_future(self.sampler.sample(request))
            except WrongPolicy:
                continue

    async def _policy_of(self, ticket: Ticket) -> tuple[int, str | None]:
        """Version and sha256 of the policy to sample from.

        The sha256 matters because a restarted learner may publish other weights under a version that this replica has
        loaded.
        """
        if ticket.newer_policy:
            newest = await asyncio.to_thread(self.queue.wait_for_policy, "0-0", 0.0)
            if newest is not None and newest.version >= ticket.policy_version:
                return newest.version, newest.sha256
        return ticket.policy_version, ticket.policy_sha256 or None
