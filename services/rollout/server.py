"""Build a rollout replica from its configuration and run it: HTTP app and worker in one event loop."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Coroutine
from typing import Any

import grpc
import uvicorn

from calopd.config import Config
from calopd.core.environment import WORKER
from calopd.core.errors import UnhealthyTeacher
from calopd.core.heartbeat import Heartbeat
from calopd.data.problems import load_all, step_problems
from calopd.local.stalled_process import exit_when_stalled
from calopd.models.devices import set_threads
from calopd.models.prompts import Prompts
from calopd.models.tokenizers import canary_ids, load_tokenizer, stop_ids, vocabulary
from calopd.planning.emulation import Emulation
from calopd.planning.rollout_limits import limited_rollout
from calopd.planning.workload import longest_rollout
from calopd.rundir.policy_reader import FileReader
from calopd.rundir.run_id import read_run_id
from calopd.tracking.trace import start_trace
from calopd.transport import auth
from calopd.transport.queue import TEACHER, Queue, open_queue
from calopd.transport.teacher_client import RETRIED, TeacherClient
from calopd.transport.teacher_pin import Pinning, TeacherChecks, TeacherPin
from services.rollout import prometheus
from services.rollout.app import create_app
from services.rollout.engines import build_engine
from services.rollout.sampler import SamplingLoop
from services.rollout.step_share import StepShare
from services.rollout.worker import Worker

log = logging.getLogger(__name__)

REFUSED_SECONDS = 5.0
"""Time between two checks of teachers that are all refused."""
WAITING_LINE_SECONDS = 30.0
"""Time between two lines in the log while no teacher answers."""
LONGEST_STOP_SECONDS = 25.0
"""Time that worker and open requests have to end after SIGTERM, below the 30 s that containers have."""


async def wait_for_teacher(teacher: TeacherClient, student_vocabulary: list[str]) -> None:
    """Wait until a teacher answers that is that of the run; a teacher with another vocabulary is an error."""
    next_line = time.monotonic()
    while True:
        try:
            described = await teacher.check_vocabulary(student_vocabulary)
            await teacher.check_replicas()
        except grpc.aio.AioRpcError as error:
            if error.code() not in RETRIED:
                raise
            if time.monotonic() >= next_line:
                log.warning("waiting for the teacher: %s (%s)", error.code().name, error.details())
                next_line = time.monotonic() + WAITING_LINE_SECONDS
            await asyncio.sleep(0.5)
            continue
        except UnhealthyTeacher as error:
            log.error("no teacher can be trusted: %s", error)
            await asyncio.sleep(REFUSED_SECONDS)
            continue
        for replica in described:
            log.info("teacher %s (%s, revision %s)", replica.model, replica.engine, replica.revision)
        return


def pinned_in_run(queue: Queue) -> Pinning:
    """Pin the teacher in the run, for all rollouts."""

    async def pin(found: TeacherPin) -> TeacherPin:
        return TeacherPin.from_json(await asyncio.to_thread(queue.pin, TEACHER, found.to_json()))

    return pin


async def serve(config: Config) -> None:
    """Serve and work until SIGTERM or SIGINT. The claimed tickets are given back."""
    rollout = limited_rollout(config)
    set_threads(rollout.threads)
    tokenizer = load_tokenizer(config.student.path)
    training, heldout = load_all(config.data.train, config.data.heldout)
    stops = stop_ids(config.student.path, tokenizer)
    longest = longest_rollout(config)
    engine = build_engine(
        config.student.path,
        rollout,
        stop_ids=stops,
        max_model_len=longest,
        seed=config.run.seed,
        deterministic=config.run.deterministic,
        emulation=Emulation.of(config),
    )
    log.info("sampler: %s", engine.name)
    queue = open_queue(config.queue.url, read_run_id(config.run_dir))
    teacher = TeacherClient(
        config.teacher_addresses,
        token=auth.token(),
        deadline_seconds=config.teacher.deadline_seconds,
        in_flight=rollout.max_in_flight,
        checks=TeacherChecks(canary_ids(tokenizer), pinned_in_run(queue), config.teacher.canary_seconds),
    )
    await wait_for_teacher(teacher, vocabulary(tokenizer))

    name = os.environ.get(WORKER.name, f"{socket.gethostname()}-{rollout.port}")
    questions = config.learner.trajectories // config.learner.samples
    if config.run.trace:
        start_trace(config.run_dir, f"rollout-{name}")
    heartbeat = Heartbeat(config.run.stall_seconds)
    exit_when_stalled(heartbeat)
    prompts = Prompts.configured(config, tokenizer, [*training, *heldout])
    prompts.on_cut = prometheus.cut_solutions.inc
    worker = Worker(
        name,
        queue=queue,
        sampler=SamplingLoop(engine, name, heartbeat),
        teacher=teacher,
        prompts=prompts,
        reader=FileReader(config.policies, rollout.policy_cache),
        max_in_flight=rollout.max_in_flight,
        lease_seconds=rollout.lease_seconds,
        max_failures=rollout.max_failures,
        share=StepShare(config.learner.trajectories * (1 + config.run.max_staleness), rollout.replicas),
        upcoming=lambda step: [problem.id for problem in step_problems(training, config.run.seed, step, questions)],
    )
    app = create_app(worker, config.method, rollout.max_tokens, config.run.name)
    server = uvicorn.Server(uvicorn.Config(app, host=auth.host(), port=rollout.port, log_config=None))
    try:
        await run_until_stopped(worker.run(), server)
    finally:
        await teacher.close()


async def run_until_stopped(work: Coroutine[Any, Any, None], server: uvicorn.Server) -> None:
    """Run both until one of them ends or SIGTERM comes, which ends the process after both."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    # uvicorn ends at the signal and sends it once more: without a handler it would end the process before the worker.
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    working, serving = asyncio.create_task(work), asyncio.create_task(server.serve())
    stopped = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait((working, serving, stopped), return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    working.cancel()
    # A worker that has failed does not wait for requests that its engine may never answer.
    _, hanging = await asyncio.wait((working, serving) if stop.is_set() else (working,), timeout=LONGEST_STOP_SECONDS)
    if hanging:
        log.error("the worker or an open request does not end within %g s: it is left", LONGEST_STOP_SECONDS)
    loop.remove_signal_handler(signal.SIGTERM)
    if stop.is_set():
        signal.raise_signal(signal.SIGTERM)
    for task in done:
        task.result()
