"""The teacher service for benchmarks: its process, a client, the CPU time of both, and its peak memory."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import grpc
import numpy as np
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from calopd.core.types import LOGPROBS_ONLY, ScoreOptions, Scores
from calopd.transport.teacher_client import TeacherClient
from tests.ports import free_ports

ROOT = Path(__file__).parent.parent
Work = list[tuple[np.ndarray, dict[str, np.ndarray]]]
"""Responses, each with the prompts of its contexts."""


@dataclass
class Service:
    port: int
    metrics_port: int
    process: psutil.Process
    child: "subprocess.Popen[bytes]"

    def exit_code(self, seconds: float) -> int | None:
        """Exit code of the service, or None if it is still running after `seconds`."""
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def score(self, work: Work, options: ScoreOptions = LOGPROBS_ONLY) -> tuple[dict[str, float], list[Scores]]:
        """Score all responses concurrently; returns CPU seconds of client and service, wall seconds, and the scores."""

        async def run() -> list[Scores]:
            client = TeacherClient([f"127.0.0.1:{self.port}"])
            try:
                calls = (client.score(str(i), ids, contexts, options) for i, (ids, contexts) in enumerate(work))
                return await asyncio.gather(*calls)
            finally:
                await client.close()

        wall, cpu, own = time.perf_counter(), time.process_time(), self._cpu()
        scores = asyncio.run(run())
        spent = {"cpu": time.process_time() - cpu + self._cpu() - own, "wall": time.perf_counter() - wall}
        return spent, scores

    def _cpu(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def metric(self, name: str) -> float:
        page = urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics").read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name))

    @contextmanager
    def peak_above_now(self) -> Iterator[list[float]]:
        """Append the peak increase of resident memory, in MiB, to the list on exit."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        before, found = self.process.memory_info().rss, list[float]()
        yield found
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
        found.append((peak - before) / 2**20)


@contextmanager
def serving(path: Path, **settings: Any) -> Iterator[Service]:
    """`python -m services.teacher_scorer` on free ports."""
    port, metrics_port = free_ports(2)
    config = "\n".join((
        '[data]\ntrain = "none"', f'[student]\npath = "{path}"', f'[teacher]\npath = "{path}"',
        f"port = {port}", f"metrics_port = {metrics_port}", "threads = 2",
        *(f"{key} = {str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()),
    ))  # fmt: skip
    with TemporaryDirectory() as folder:
        file = Path(folder) / "config.toml"
        file.write_text(config)
        command = [sys.executable, "-m", "services.teacher_scorer", "--config", str(file)]
        environment = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=out)
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                while not _is_serving(stub):
                    if process.poll() is not None:
                        raise RuntimeError(f"the teacher did not start: {log.read_text()[-2000:]}")
            yield Service(port, metrics_port, psutil.Process(process.pid), process)
        finally:
            process.terminate()
            process.wait()


def _is_serving(stub: Any) -> bool:
    try:
        answer = stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=1)
    except grpc.RpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
