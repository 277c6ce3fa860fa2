"""From a ticket to its trajectory: the prompt, the sampled response, its scores and whether its answer is correct."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from calopd.core.contexts import BASE
from calopd.core.errors import EngineFailed, InvalidRequest
from calopd.core.types import Problem, Sample, Ticket, Trajectory
from calopd.data.answers import answered_after_think, is_correct
from calopd.models.prompts import Prompts
from calopd.tracking.trace import task_span
from calopd.transport.convert import ReceivedScores
from calopd.transport.queue import Claim, Queue
from calopd.transport.teacher_client import TeacherClient
from services.rollout import prometheus
from services.rollout.engines.sampling_engine import SampleRequest
from services.rollout.loaded_policy import LoadedPolicy
from services.rollout.sampler import SamplingLoop, WrongPolicy
from services.rollout.turns import Turns

log = logging.getLogger(__name__)

ALONE_FROM = 3
"""Deliveries of a ticket from which on it is sampled alone: it may have crashed the process, its neighbours not."""


class TrajectoryWriter:
    def __init__(
        self,
        worker: str,
        *,
        queue: Queue,
        sampler: SamplingLoop,
        teacher: TeacherClient,
        prompts: Prompts,
        policy: LoadedPolicy,
        turns: Turns,
    ) -> None:
        self._worker, self._queue, self._sampler, self._teacher = worker, queue, sampler, teacher
        self._prompts, self._policy, self._turns = prompts, policy, turns
        self.executor = ThreadPoolExecutor(2, "answers")
        """For work that must not delay the event loop."""

    async def write(
        self, ticket: Ticket, sampled: Callable[[], None], alone: Claim | None = None
    ) -> tuple[Trajectory, ReceivedScores | None]:
        """Return the trajectory of a ticket, without scores, and the scores as the teacher sent them.

        `sampled` is called when the response is complete. With `alone`, its claim, nothing else is sampled beside it.
        """
        problem = self._prompts.problems.get(ticket.problem_id)
        if problem is None:
            raise InvalidRequest(f"problem {ticket.problem_id!r} is in neither data.train nor data.heldout")
        prompt_ids = self._prompts.ids(problem)
        with prometheus.sample_seconds.time():
            sample = await self._sample_in_turn(ticket, prompt_ids, alone)
        sampled()
        # In another thread: some answers take seconds to check, and leases must be renewed meanwhile.
        judged = asyncio.get_running_loop().run_in_executor(self.executor, self._judge, sample, problem)
        scores = None
        if ticket.contexts:
            prompts = {
                name: prompt_ids if name == BASE else self._prompts.ids(problem, name) for name in ticket.contexts
            }
            waiting = task_span("wait for scores", ticket=ticket.id)
            with prometheus.scoring.track_inprogress(), prometheus.score_seconds.time(), waiting:
                scores = await self._teacher.request_scores(
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
            sampler=self._sampler.name,
            worker=self._worker,
            activity=self._sampler.clock.read(),
        )
        return trajectory, scores

    def _judge(self, sample: Sample, problem: Problem) -> tuple[bool, bool]:
        text = self._prompts.decode(sample.response_ids)
        return is_correct(text, problem.answer), answered_after_think(text)

    async def _sample_in_turn(self, ticket: Ticket, prompt_ids: np.ndarray, alone: Claim | None) -> Sample:
        if alone is None:
            async with self._turns.together():
                return await self._sample(ticket, prompt_ids)
        async with self._turns.alone():
            if self._sampler.failed:
                raise EngineFailed("the sampling engine failed before this ticket's turn")
            # Counted before: if the process dies, it was this ticket.
            await asyncio.to_thread(self._queue.count_attempt, alone, "alone")
            log.warning("ticket %s was claimed %d times or more: it is sampled alone", ticket.id, ALONE_FROM)
            try:
                return await self._sample(ticket, prompt_ids)
            finally:
                if not self._sampler.failed:
                    await asyncio.to_thread(self._queue.count_attempt, alone, "alone", -1)

    async def _sample(self, ticket: Ticket, prompt_ids: np.ndarray) -> Sample:
        while True:
            version, sha256 = await self._policy_of(ticket)
            await self._policy.ensure(version, sha256)
            request = SampleRequest(
                prompt_ids, ticket.sampling, ticket.seed, version, sha256, preemptible=ticket.is_evaluation
            )
            try:
                return await asyncio.wrap_future(self._sampler.sample(request))
            except WrongPolicy:
                continue

    async def _policy_of(self, ticket: Ticket) -> tuple[int, str | None]:
        """Version and sha256 of the policy to sample from.

        The sha256 matters because a restarted learner may publish other weights under a version that this replica has
        loaded.
        """
        if ticket.newer_policy:
            newest = await asyncio.to_thread(self._queue.wait_for_policy, "0-0", 0.0)
            if newest is not None and newest.version >= ticket.policy_version:
                return newest.version, newest.sha256
        return ticket.policy_version, ticket.policy_sha256 or None
