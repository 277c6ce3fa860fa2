"""One process of `calopd tsd collect`: score sampled or recorded responses under every context.

Rollouts have an index; of n replicas, each takes every n-th index. An index that is in a shard is skipped, so a killed
study resumes where it stopped. Responses in flight are always finished: stopping as soon as the token budget is reached
would bias the study against long responses.
"""

import asyncio
import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from calopd.config import Config, load_config
from calopd.core.contexts import BASE
from calopd.core.errors import ConfigError, InvalidRequest
from calopd.core.one_line_parser import OneLineParser
from calopd.core.tsd.noise import noise_counts
from calopd.data.answers import is_correct
from calopd.data.problems import load_problems, training_order
from calopd.local.entry_point import INTERRUPTED_EXIT, die_with_launcher, guarded, tell_progress
from calopd.models.devices import set_threads
from calopd.models.prompts import Prompts
from calopd.models.tokenizers import canary_ids, load_tokenizer, stop_ids, vocabulary
from calopd.planning.rollout_limits import limited_rollout
from calopd.rundir.files import append_line, read_lines, write_json
from calopd.rundir.locks import shared
from calopd.study.collection import Goal
from calopd.study.recorded_rollouts import RecordedFile, RecordedStudy, Response, open_recorded
from calopd.study.shards import ScoredRollout, Study, StudyRollout
from calopd.tracking.log_format import setup_logging
from calopd.transport import auth
from calopd.transport.teacher_client import TeacherClient
from calopd.transport.teacher_pin import TeacherChecks, pinned_in_memory
from services.rollout.engines import build_engine
from services.rollout.engines.sampling_engine import SampleRequest
from services.rollout.sampler import SamplingLoop
from services.rollout.server import wait_for_teacher

log = logging.getLogger(__name__)

REQUESTS_PER_TEACHER = 3
"""Concurrent requests per teacher: at nine contexts each they fill its batches, and none exceeds its deadline."""
MAX_REFUSED = 50
"""Refused rollouts up to which a collection continues even if nothing was scored."""


class Source(Protocol):
    """Provides the response of an index."""

    async def get(self, index: int) -> Response: ...


class SampledSource:
    """Responses sampled from the student: problems in the seeded order, one seed per index."""

    def __init__(self, config: Config, prompts: Prompts, sampler: SamplingLoop) -> None:
        self._config, self._prompts, self._sampler = config, prompts, sampler
        self._problems = list(prompts.problems.values())

    async def get(self, index: int) -> Response:
        seed = self._config.run.seed
        ((_, number),) = training_order(len(self._problems), seed, index, 1)
        problem = self._problems[number]
        request = SampleRequest(self._prompts.ids(problem), self._config.rollout.sampling, seed * 1_000_003 + index)
        sample = await asyncio.wrap_future(self._sampler.sample(request))
        return Response(problem, sample.response_ids, sample.logprobs, None, sample.truncated)


class RecordedSource:
    """Recorded responses; a scorer that serves the student adds missing student log-probabilities."""

    def __init__(self, recorded: RecordedFile | RecordedStudy, prompts: Prompts, student: TeacherClient | None) -> None:
        self._recorded, self._prompts, self._student = recorded, prompts, student

    async def get(self, index: int) -> Response:
        response = await asyncio.to_thread(self._recorded.get, index)
        if response.student_logprobs is not None:
            return response
        assert self._student is not None
        prompt = {BASE: self._prompts.ids(response.problem)}
        scores = await self._student.score(f"student-{index}", response.token_ids, prompt)
        return Response(response.problem, response.token_ids, scores.logprobs[0], response.correct, response.truncated)


@dataclass(frozen=True, slots=True)
class Share:
    replica: int
    replicas: int


class Collector:
    def __init__(
        self, study: Study, share: Share, goal: Goal, source: Source, teacher: TeacherClient, prompts: Prompts
    ) -> None:
        self.study, self.share, self.goal = study, share, goal
        self.source, self.teacher, self.prompts = source, teacher, prompts
        self._contexts = study.contexts
        self._judge = ThreadPoolExecutor(1, "answers")
        self._buffer: list[ScoredRollout] = []
        self._flushed = time.monotonic()
        self._flushing = threading.Lock()
        self._rollouts = self._tokens = self._refused = 0
        self._earlier = (0, 0)
        self._refusals = study.files.refused(share.replica)
        self._noise = study.files.noise(share.replica)

    async def run(self, in_flight: int) -> None:
        done = {rollout.index: rollout.tokens for _, _, rollout in self.study.rollouts()}
        refused = {row["index"] for file in self.study.files.refused_files for row in read_lines(file)}
        mine = [tokens for index, tokens in done.items() if index % self.share.replicas == self.share.replica]
        self._earlier = (len(mine), sum(mine))
        wanted = None if self.goal.tokens is None else (self.goal.tokens - sum(done.values())) / self.share.replicas
        self._write_progress()
        try:
            await self._collect(in_flight, done, refused, wanted)
        finally:  # also after SIGTERM: a rollout that was counted on the screen is on the disk
            self._flush()
            self._write_progress()

    async def _collect(self, in_flight: int, done: dict[int, int], refused: set[int], wanted: float | None) -> None:
        """Score rollouts until the goal is reached."""
        index = self.share.replica
        tasks: set[asyncio.Task[None]] = set()
        while True:
            while len(tasks) < in_flight and self._more(index, wanted, len(tasks)):
                if index not in done and index not in refused:
                    tasks.add(asyncio.create_task(self._work(index)))
                index += self.share.replicas
            if not tasks:
                break
            finished, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                task.result()
            held = sum(scored.rollout.tokens for scored in self._buffer)
            if held >= self.goal.shard_tokens or time.monotonic() - self._flushed > self.goal.flush_seconds:
                await asyncio.to_thread(self._flush)
            self._write_progress()

    def _more(self, index: int, wanted: float | None, in_flight: int) -> bool:
        """Whether to start another rollout; those in flight are expected to have the mean length so far."""
        if self.goal.rollouts is not None and index >= self.goal.rollouts:
            return False
        expected = in_flight * self._tokens / max(self._rollouts, 1)
        return wanted is None or self._tokens + expected < wanted

    async def _work(self, index: int) -> None:
        try:
            response = await self.source.get(index)
            contexts = {name: self.prompts.ids(response.problem, name) for name in self._contexts}
            scores = await self.teacher.score(f"tsd-{index}", response.token_ids, contexts)
        except (InvalidRequest, ConfigError) as error:
            log.error("rollout %d is refused: %s", index, error)
            append_line(self._refusals, {"index": index, "reason": str(error)})
            self._refused += 1
            if self._refused > max(MAX_REFUSED, self._rollouts):
                raise ConfigError(f"{self._refused} rollouts were refused, more than were scored; {error}") from None
            return
        if index < self.goal.noise_rollouts:
            await self._measure_noise(index, response, scores.logprobs[0])
        correct = response.correct
        if correct is None:
            loop = asyncio.get_running_loop()
            text = self.prompts.decode(response.token_ids)
            correct = await loop.run_in_executor(self._judge, is_correct, text, response.problem.answer)
        problem, length = response.problem, len(response.token_ids)
        rollout = StudyRollout(index, problem.id, length, problem.problem, problem.answer, correct, response.truncated)
        assert response.student_logprobs is not None
        self._buffer.append(ScoredRollout(rollout, response.token_ids, response.student_logprobs, scores.logprobs))
        self._rollouts, self._tokens = self._rollouts + 1, self._tokens + length
        tell_progress()

    async def _measure_noise(self, index: int, response: Response, logprobs: np.ndarray) -> None:
        """Score c0 again, alone: the batch is another one, and what differs is rounding."""
        prompt = {BASE: self.prompts.ids(response.problem)}
        again = await self.teacher.score(f"noise-{index}", response.token_ids, prompt)
        append_line(self._noise, {"index": index, **noise_counts(logprobs, again.logprobs[0])})

    def _flush(self) -> None:
        """Write a shard; the last flush waits for one that a stop has left behind in its thread."""
        with self._flushing:
            ready, self._buffer = self._buffer, []
            if ready:
                self.study.write_shard(self.share.replica, ready)
            self._flushed = time.monotonic()

    def _write_progress(self) -> None:
        """Write the counts of this replica for the progress display of the launcher."""
        rollouts, tokens = self._earlier
        counts = {"rollouts": rollouts + self._rollouts, "tokens": tokens + self._tokens}
        write_json(self.study.files.progress(self.share.replica), counts)


def token_texts(tokenizer: Any) -> list[str]:
    """The text of every id; the vocabulary entry for an id that decodes to no complete character."""
    pieces = vocabulary(tokenizer)
    decoded = tokenizer.batch_decode([[number] for number in range(len(pieces))])
    return [piece if "\ufffd" in text or not text else text for piece, text in zip(pieces, decoded, strict=True)]


async def collect(config: Config, study: Study, share: Share, goal: Goal, recorded: Path | None, student: str) -> None:
    set_threads(config.rollout.threads)
    tokenizer = load_tokenizer(config.student.path)
    problems = load_problems(config.data.train)
    if share.replica == 0 and not study.files.tokens.exists():
        study.write_tokens(token_texts(tokenizer))
    existing = open_recorded(recorded, problems, tokenizer) if recorded else None
    known = {problem.id: problem for problem in [*problems, *(existing.problems if existing else ())]}
    prompts = Prompts.configured(config, tokenizer, list(known.values()))

    def client(addresses: tuple[str, ...]) -> TeacherClient:
        return TeacherClient(
            addresses,
            token=auth.token(),
            deadline_seconds=config.teacher.deadline_seconds,
            in_flight=REQUESTS_PER_TEACHER * len(addresses),
            checks=TeacherChecks(canary_ids(tokenizer), pinned_in_memory(), config.teacher.canary_seconds),
        )

    clients = [client(config.teacher_addresses)] + ([client((student,))] if student else [])
    source: Source
    if existing is not None:
        source = RecordedSource(existing, prompts, clients[1] if student else None)
    else:
        student_path, rollout = config.student.path, limited_rollout(config)
        longest = config.data.max_prompt_tokens + rollout.max_tokens
        stops = stop_ids(student_path, tokenizer)
        engine = build_engine(student_path, rollout, stop_ids=stops, max_model_len=longest, seed=config.run.seed)
        source = SampledSource(config, prompts, SamplingLoop(engine))
    for each in clients:
        await wait_for_teacher(each, vocabulary(tokenizer))
    collecting = asyncio.current_task()
    assert collecting is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, collecting.cancel)
    await Collector(study, share, goal, source, clients[0], prompts).run(limited_rollout(config).max_in_flight)
    for each in clients:
        await each.close()


def main() -> None:
    parser = OneLineParser(prog="python -m services.rollout.jobs.collect", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--study", type=Path, required=True)
    parser.add_argument("--replica", type=int, default=0)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--student-scorer", default="", help="host:port of a scorer that serves the student")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--rollouts", type=int)
    parser.add_argument("--shard-tokens", type=int, required=True)
    parser.add_argument("--flush-seconds", type=float, required=True)
    parser.add_argument("--noise-rollouts", type=int, default=0)
    arguments = parser.parse_args()
    die_with_launcher()
    setup_logging("collect")
    study, share = Study(arguments.study), Share(arguments.replica, arguments.replicas)
    with shared(study.files.collectors_lock):  # the launcher waits until no collector of a previous start is running
        goal = Goal.of(arguments)
        try:
            asyncio.run(
                collect(load_config(arguments.config), study, share, goal, arguments.recorded, arguments.student_scorer)
            )
        except asyncio.CancelledError:
            os._exit(INTERRUPTED_EXIT)  # the launcher stops the study: all is saved, and engine threads need not end


if __name__ == "__main__":
    guarded(main)
