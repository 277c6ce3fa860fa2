"""Services as the processes they are."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

ROOT = Path(__file__).parents[2]


@contextmanager
def service(module: str, config: Path, log: Path, environment: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", module, "--config", str(config)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until_serving(port: int, process: "subprocess.Popen[bytes]", log: Path, seconds: float = 300) -> None:
    """Until the standard gRPC health service says so."""
    deadline = time.monotonic() + seconds
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while True:
            assert process.poll() is None, log.read_text()
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=1, wait_for_ready=True)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.RpcError:
                pass
            assert time.monotonic() < deadline, log.read_text()
