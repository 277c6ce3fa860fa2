"""Real parts for the tests: tiny models and a Redis-protocol server."""

import logging
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from calopd.local import embedded_redis
from tests.ports import free_port
from tests.tiny import Tiny

# The same examples in every run, and no time limits: neither a draw nor a busy machine decides whether the tests pass.
# `pytest --hypothesis-profile=explore` draws new examples.
settings.register_profile("repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

START_SECONDS = 120.0
"""How long a Redis-protocol server may take to answer on a busy machine."""


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A test that starts a command in this process leaves no handler behind: its output is closed after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny.make(tmp_path_factory.mktemp("tiny"))


@dataclass
class Server:
    """A server whose process a test may kill and start again."""

    command: list[str]
    url: str
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        embedded_redis.wait_until_ready(self.url, START_SECONDS)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @contextmanager
    def running(self) -> Iterator["Server"]:
        try:
            self.start()
            yield self
        finally:
            self.kill()


@pytest.fixture(params=["embedded", "redis-server"])
def redis_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """The embedded server, and a plain redis-server where the machine has one."""
    port = free_port()
    command = embedded_redis.server_command(tmp_path, port, "secret")
    if request.param == "redis-server":
        binary = shutil.which("redis-server")
        if binary is None:
            pytest.skip("no redis-server on this machine")
        command[0] = binary
    with Server(command, embedded_redis.server_url(port, "secret")).running() as server:
        yield server
