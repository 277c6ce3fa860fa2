"""Build the teacher from its configuration and serve it."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from calopd.config import Config
from calopd.core.errors import UnhealthyTeacher
from calopd.core.heartbeat import Heartbeat
from calopd.local.entry_point import tell_progress
from calopd.local.stalled_process import exit_when_stalled
from calopd.models.devices import set_threads
from calopd.models.tokenizers import canary_ids, load_tokenizer, vocabulary
from calopd.planning.emulation import Emulation
from calopd.planning.teacher_limits import limited_teacher
from calopd.tracking.trace import start_trace
from calopd.transport import auth
from calopd.transport.v1 import teacher_scorer_pb2
from calopd.transport.v1.teacher_scorer_pb2_grpc import add_TeacherScorerServicer_to_server
from services.teacher_scorer.canary import Canary
from services.teacher_scorer.engines import build_engine
from services.teacher_scorer.scheduler import Scheduler
from services.teacher_scorer.servicer import Limits, Servicer, TokenInterceptor

log = logging.getLogger(__name__)

SERVICE = teacher_scorer_pb2.DESCRIPTOR.services_by_name["TeacherScorer"].full_name
GRACE_SECONDS = 5
"""Time for open streams and health checks to end after all accepted requests have been answered."""


def message_options(limits: Limits) -> list[tuple[str, int]]:
    """gRPC message limits: four times the largest valid request, so that larger ones still get an error message."""
    ids = 4 * limits.max_tokens * (limits.max_contexts + 1)
    scores = 4 * limits.max_tokens * (limits.max_contexts + 1 + 2 * limits.max_top_k)
    return [
        ("grpc.max_receive_message_length", 4 * ids + 2**20),
        ("grpc.max_send_message_length", scores + 2**20),
        ("grpc.default_compression_algorithm", grpc.Compression.NoCompression.value),
    ]


async def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT; accepted requests are answered before the server stops."""
    teacher = limited_teacher(config)
    set_threads(teacher.threads)
    tokenizer = load_tokenizer(teacher.path)
    engine = build_engine(teacher, Emulation.of(config), deterministic=config.run.deterministic)
    heartbeat = Heartbeat(config.run.stall_seconds)
    refusing: list[Callable[[str], object]] = []
    exit_when_stalled(heartbeat, lambda reason: [refuse(reason) for refuse in refusing])
    with heartbeat.work("the plain forward pass of the canary"):
        canary = Canary(engine, canary_ids(tokenizer))
    name = f"{socket.gethostname()}-{teacher.port}"
    if config.run.trace:
        start_trace(config.run_dir, f"teacher-{name}")
    scheduler = Scheduler(
        engine,
        batch_tokens=teacher.batch_tokens,
        max_waiting=teacher.max_waiting,
        separately=config.run.deterministic,
        process=name,
        heartbeat=heartbeat,
    )
    await canary.check(scheduler)

    limits = Limits(
        max_tokens=min(teacher.max_tokens, engine.max_positions),
        max_contexts=teacher.max_contexts,
        max_top_k=min(teacher.max_top_k, engine.vocabulary_size),
    )
    servicer = Servicer(engine, scheduler, vocabulary(tokenizer), limits)
    interceptors = [TokenInterceptor(auth.token())] if auth.token() else []
    server = grpc.aio.server(options=message_options(limits), interceptors=interceptors)
    add_TeacherScorerServicer_to_server(servicer, server)
    probes = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(probes, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    address, credentials = f"{auth.host()}:{teacher.port}", auth.server_credentials()
    server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    start_http_server(teacher.metrics_port, addr=auth.host())

    loop = asyncio.get_running_loop()

    async def report(error: UnhealthyTeacher | None) -> None:
        servicer.unhealthy = error
        status = health_pb2.HealthCheckResponse
        for name in ("", SERVICE):
            await probes.set(name, status.NOT_SERVING if error else status.SERVING)

    refusing.append(lambda reason: asyncio.run_coroutine_threadsafe(report(UnhealthyTeacher(reason)), loop))
    await server.start()
    watch = asyncio.create_task(canary.watch(scheduler, teacher.canary_seconds, report))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    log.info("serving %s on port %d", teacher.path, teacher.port)
    tell_progress()
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((stopped, watch), return_when=asyncio.FIRST_COMPLETED)
    if not stopped.done():
        watch.result()
    watch.cancel()
    await probes.enter_graceful_shutdown()
    try:
        async with asyncio.timeout(teacher.drain_seconds):
            await servicer.drain()
    except TimeoutError:
        log.error("not all accepted requests were answered within teacher.drain_seconds = %g", teacher.drain_seconds)
    await server.stop(GRACE_SECONDS)
    scheduler.stop()
