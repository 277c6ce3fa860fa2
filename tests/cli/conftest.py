"""The folder in which mistakes are made, and the time that they may take."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.workspace import build

MOST_SECONDS = 5.0


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    build(folder)
    return folder


@pytest.fixture
def known_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """At most five seconds of computing and five of sleeping, which a busy machine does not change; no other host."""
    sleep, connect = time.sleep, socket.socket.connect
    waits: list[float] = []

    def counted_sleep(seconds: float) -> None:
        waits.append(seconds)
        assert sum(waits) < MOST_SECONDS, f"waits for {sum(waits):.1f} s"
        sleep(seconds)

    def connect_here(self: socket.socket, address: Any) -> None:
        assert isinstance(address, str) or address[0] in ("127.0.0.1", "::1", "localhost"), address
        connect(self, address)

    monkeypatch.setattr(time, "sleep", counted_sleep)
    monkeypatch.setattr(socket.socket, "connect", connect_here)
    start = time.process_time()
    yield
    assert time.process_time() - start < MOST_SECONDS
