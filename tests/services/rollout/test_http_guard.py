"""`POST /v1/generate` on a real HTTP server: what is refused before a body is read, and what ends with its client."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
import uvicorn

from calopd.config.sections import MethodSection
from calopd.core.environment import TOKEN
from calopd.core.errors import EngineFailed, InvalidRequest
from services.rollout.app import create_app
from services.rollout.engines.sampling_engine import Finished, SampleRequest
from services.rollout.http_guard import MAX_BODY_BYTES
from services.rollout.sampler import SamplingLoop, WrongPolicy
from services.rollout.turns import Turns

MAX_IN_FLIGHT = 2


class Endless:
    """An engine whose responses end when the test says so."""

    name = "endless"

    def __init__(self) -> None:
        self.keys: set[int] = set()
        self.aborted: list[int] = []
        self.end = threading.Event()

    def add(self, key: int, request: SampleRequest) -> None:
        self.keys.add(key)

    def step(self) -> list[Finished]:
        if not self.end.wait(0.005):
            return []
        done, self.keys = self.keys, set()
        one = np.ones(1)
        return [Finished(key, one.astype(np.int32), -one.astype(np.float32), truncated=False) for key in done]

    def abort(self, keys: set[int]) -> None:
        self.aborted += keys
        self.keys -= keys

    def load(self, directory: Path) -> None: ...


class Service:
    def __init__(self) -> None:
        self.engine = Endless()
        self.sampler = SamplingLoop(cast(Any, self.engine))
        prompts = SimpleNamespace(ids=lambda problem: np.ones(1, dtype=np.int32), decode=lambda ids: "text")
        self.worker = SimpleNamespace(sampler=self.sampler, prompts=prompts, max_in_flight=MAX_IN_FLIGHT, turns=Turns())
        self.app = app = create_app(cast(Any, self.worker), MethodSection(), 16, "run")
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]}, daemon=True)
        self._thread.start()

    def connect(self, *headers: str, body: bytes = b"") -> socket.socket:
        """Send the head of a request, and as much of its body as is given."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        head = ["POST /v1/generate HTTP/1.1", "Host: test", "Content-Type: application/json", *headers]
        connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
        return connection

    def ask(self, **fields: Any) -> socket.socket:
        body = json.dumps({"problem": "2+2", **fields}).encode()
        return self.connect("Authorization: Bearer secret", f"Content-Length: {len(body)}", body=body)

    def close(self) -> None:
        self.engine.end.set()
        self._server.should_exit = True
        self._thread.join()
        self.sampler.stop()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv(TOKEN.name, "secret")
    service = Service()
    yield service
    service.close()


def status_of(connection: socket.socket) -> int:
    with connection:
        return int(connection.recv(65_536).split()[1])


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("authorization", [[], ["Authorization: Bearer wrong"], ["Authorization: Basic secret"]])
def test_the_token_is_asked_for_before_the_body(service, authorization):
    """The body never comes: a server that reads it first would not answer."""
    assert status_of(service.connect(*authorization, "Content-Length: 30000000")) == 401
    assert status_of(service.connect(*authorization, "Transfer-Encoding: chunked")) == 401


def test_a_body_that_is_too_large_is_refused_unread(service):
    head = ["Authorization: Bearer secret"]
    assert status_of(service.connect(*head, f"Content-Length: {MAX_BODY_BYTES + 1}")) == 413
    connection = service.connect(*head, "Transfer-Encoding: chunked")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    for _ in range(MAX_BODY_BYTES // 0x10000 + 1):
        connection.sendall(chunk)
    assert status_of(connection) == 413


def test_no_more_requests_are_taken_than_the_limit(service):
    taken = [service.ask() for _ in range(MAX_IN_FLIGHT)]
    wait(lambda: len(service.engine.keys) == MAX_IN_FLIGHT)
    assert status_of(service.ask()) == 429
    service.engine.end.set()
    assert [status_of(connection) for connection in taken] == [200] * MAX_IN_FLIGHT
    assert status_of(service.ask()) == 200


def test_a_client_that_leaves_frees_its_place(service):
    connections = [service.ask() for _ in range(MAX_IN_FLIGHT)]
    wait(lambda: len(service.engine.keys) == MAX_IN_FLIGHT)
    for connection in connections:
        connection.close()
    wait(lambda: len(service.engine.aborted) == MAX_IN_FLIGHT)
    assert not service.engine.keys
    staying = service.ask()
    wait(lambda: bool(service.engine.keys))
    service.engine.end.set()
    assert status_of(staying) == 200


def client_of(service: Service) -> httpx.AsyncClient:
    headers = {"authorization": "Bearer secret"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(service.app), base_url="http://test", headers=headers)


def test_a_request_waits_for_the_ticket_that_is_sampled_alone(service):
    async def ask() -> int:
        async with client_of(service) as client:
            async with service.worker.turns.alone():
                asked = asyncio.create_task(client.post("/v1/generate", json={"problem": "2+2"}))
                await asyncio.sleep(0.2)
                assert not service.engine.keys
            service.engine.end.set()
            return (await asked).status_code

    assert asyncio.run(ask()) == 200


@pytest.mark.parametrize(
    ("error", "status"),
    [(EngineFailed("it failed"), 503), (WrongPolicy("load one first"), 503), (InvalidRequest("too long"), 422)],
)
def test_what_is_not_the_requests_fault_is_said_to_be_unavailable(service, error, status):
    def fail(request: SampleRequest) -> None:
        raise error

    service.worker.sampler = SimpleNamespace(sample=fail)

    async def ask() -> httpx.Response:
        async with client_of(service) as client:
            return await client.post("/v1/generate", json={"problem": "2+2"})

    answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["detail"]) == (status, str(error))
