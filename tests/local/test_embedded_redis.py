"""The embedded server of a run whose data were damaged: it starts, says what it did, and keeps them."""

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from calopd.core.errors import QueueUnavailable
from calopd.local.embedded_redis import DAMAGED, DATA
from calopd.local.services import LocalServices
from tests.ports import free_port


def start(folder: Path, port: int | None = None) -> int:
    """Start the server, write twenty keys, and stop it; returns the number of keys that it had."""
    config: Any = SimpleNamespace(queue=SimpleNamespace(url="", port=port or free_port()))
    with LocalServices(folder / "logs", []) as services:
        services.start_queue(config, folder / "redis")
        client = redis.Redis.from_url(services.queue_url)
        found = client.dbsize()
        for number in range(20):
            client.set(f"key {number}", "value " * 10)
        return int(found)


def data_of(folder: Path) -> dict[str, Path]:
    return {file.suffix: file for file in (folder / "redis" / DATA).iterdir()}


@pytest.mark.parametrize("kind", [".aof", ".rdb", ".manifest"])
def test_damaged_data_are_moved_aside(tmp_path, capfd, kind):
    assert start(tmp_path) == 0
    file = data_of(tmp_path)[kind]
    content = bytearray(file.read_bytes())
    content[-4 if kind == ".rdb" else 0] ^= 1 << 6
    file.write_bytes(content)
    assert start(tmp_path) == 0
    aside = tmp_path / "redis" / f"{DATA}{DAMAGED}"
    assert (aside / file.name).read_bytes() == content
    assert f"the data of the queue are damaged and were moved to {aside}" in capfd.readouterr().err
    assert start(tmp_path) == 20


def test_an_incomplete_last_write_is_cut_off(tmp_path):
    start(tmp_path)
    file = data_of(tmp_path)[".aof"]
    os.truncate(file, file.stat().st_size - 7)
    assert start(tmp_path) == 19
    assert not (tmp_path / "redis" / f"{DATA}{DAMAGED}").exists()


def test_data_stay_where_they_are_if_the_server_ends_for_another_reason(tmp_path):
    start(tmp_path)
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        with pytest.raises(QueueUnavailable, match="does not answer"):
            start(tmp_path, port)
    assert not (tmp_path / "redis" / f"{DATA}{DAMAGED}").exists()
    assert start(tmp_path) == 20
