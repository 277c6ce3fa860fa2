"""Build a rollout replica from its configuration and run it: HTTP app and worker in one event loop."""

import asyncio
import logging
import os
import socket

import grpc
import uvicorn

from calopd.config import Config
from calopd.core.environment import WORKER
from calopd.data.problems import load_all, step_problems
from calopd.models.devices import set_threads
from calopd.models.prompts import Prompts
from calopd.models.tokenizers import load_tokenizer, stop_ids, vocabulary
from calopd.planning.emulation import Emulation
from calopd.planning.rollout_limits import limited_rollout
from calopd.planning.workload import longest_rollout
from calopd.rundir.policy_reader import FileReader
from calopd.rundir.run_id import read_run_id
from calopd.tracking.trace import start_trace
from calopd.transport import auth
from calopd.transport.queue import open_queue
from calopd.transport.teacher_client import TeacherClient
from services.rollout.app import create_app
from services.rollout.engines import build_engine
from services.rollout.sampler import SamplingLoop
from services.rollout.step_share import StepShare
from services.rollout.worker import Worker

log = logging.getLogger(__name__)


async def wait_for_teacher(teacher: TeacherClient, student_vocabulary: list[str]) -> None:
    """Wait until all teachers answer; a teacher with another vocabulary is refused."""
    while True:
        try:
            described = await teacher.check_vocabulary(student_vocabulary)
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            await asyncio.sleep(0.5)
            continue
        for replica in described:
            log.info("teacher %s (%s, revision %s)", replica.model, replica.engine, replica.revision)
        return


async def serve(config: Config) -> None:
    """Serve and work until SIGTERM or SIGINT. Other workers take over the claimed tickets."""
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
        emulation=Emulation.of(config),
    )
    log.info("sampler: %s", engine.name)
    teacher = TeacherClient(
        config.teacher_addresses,
        token=auth.token(),
        deadline_seconds=config.teacher.deadline_seconds,
        in_flight=rollout.max_in_flight,
    )
    await wait_for_teacher(teacher, vocabulary(tokenizer))

    name = os.environ.get(WORKER.name, f"{socket.gethostname()}-{rollout.port}")
    questions = config.learner.trajectories // config.learner.samples
    if config.run.trace:
        start_trace(config.run_dir, f"rollout-{name}")
    worker = Worker(
        name,
        queue=open_queue(config.queue.url, read_run_id(config.run_dir)),
        sampler=SamplingLoop(engine, name),
        teacher=teacher,
        prompts=Prompts.configured(config, tokenizer, [*training, *heldout]),
        reader=FileReader(config.policies, rollout.policy_cache),
        max_in_flight=rollout.max_in_flight,
        lease_seconds=rollout.lease_seconds,
        max_deliveries=rollout.max_deliveries,
        share=StepShare(config.learner.trajectories * (1 + config.run.max_staleness), rollout.replicas),
        upcoming=lambda step: [problem.id for problem in step_problems(training, config.run.seed, step, questions)],
    )
    app = create_app(worker, config.method, rollout.max_tokens, config.run.name)
    server = uvicorn.Server(uvicorn.Config(app, host=auth.host(), port=rollout.port, log_config=None))
    working = asyncio.create_task(worker.run())
    serving = asyncio.create_task(server.serve())
    done, _ = await asyncio.wait((working, serving), return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    working.cancel()
    await teacher.close()
    for task in done:
        task.result()
