"""Health probes and mutual TLS, against a real gRPC server."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from calopd.config import load_config
from calopd.core.environment import TLS_CA
from calopd.core.errors import ConfigError
from calopd.models.tokenizers import load_tokenizer, vocabulary
from calopd.transport import auth, teacher_client
from calopd.transport import health_check as probe
from calopd.transport.teacher_client import TeacherClient
from deploy.tls.certificates import make_certificates
from services.teacher_scorer import server
from tests.ports import free_port
from tests.services.teacher_scorer.test_hung_teacher import IDS, FakeEngine

SERVING = health_pb2.HealthCheckResponse.SERVING


@contextmanager
def healthy_server(status: int = SERVING) -> Iterator[str]:
    """A server with nothing but the health service, under the credentials of the environment."""
    servicer = health.HealthServicer()
    servicer.set("", status)
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    credentials, any_port = auth.server_credentials(), "127.0.0.1:0"
    port = server.add_secure_port(any_port, credentials) if credentials else server.add_insecure_port(any_port)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def test_a_serving_server_is_well_and_another_is_not():
    with healthy_server() as address:
        assert probe.grpc_is_healthy(address)
    with healthy_server(health_pb2.HealthCheckResponse.NOT_SERVING) as address:
        assert not probe.grpc_is_healthy(address)


def test_the_command_says_what_is_wrong():
    command = [sys.executable, "-m", "calopd.transport.health_check", "http", f"http://127.0.0.1:{free_port()}/healthz"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "refused" in done.stderr


def test_mutual_tls_lets_in_only_certificates_of_the_authority(tmp_path, monkeypatch):
    ours, theirs = make_certificates(tmp_path / "ours"), make_certificates(tmp_path / "theirs")
    monkeypatch.setattr(probe, "TIMEOUT_SECONDS", 120.0)
    for variable, file in ours.items():
        monkeypatch.setenv(variable, file)
    with healthy_server() as address:
        assert probe.grpc_is_healthy(address)
        monkeypatch.setattr(probe, "TIMEOUT_SECONDS", 2.0)  # refused calls wait for it
        # Trusts the server, but shows a certificate of somebody else.
        monkeypatch.setenv("CALOPD_TLS_CERT", theirs["CALOPD_TLS_CERT"])
        monkeypatch.setenv("CALOPD_TLS_KEY", theirs["CALOPD_TLS_KEY"])
        with pytest.raises(grpc.RpcError):
            probe.grpc_is_healthy(address)
        for variable in auth.TLS_FILES:
            monkeypatch.delenv(variable)
        with pytest.raises(grpc.RpcError):
            probe.grpc_is_healthy(address)


def test_mutual_tls_of_the_real_teacher(tiny, tmp_path, monkeypatch):
    """A client reaches a replica by its number, and compares the certificate with the name that it was given."""
    ours, theirs = make_certificates(tmp_path / "ours"), make_certificates(tmp_path / "theirs")
    config = load_config(tiny.write_config("tls"), [], {})
    tokens = vocabulary(load_tokenizer(config.teacher.path))
    monkeypatch.setattr(server, "build_engine", lambda *arguments, **settings: FakeEngine())
    monkeypatch.setattr(teacher_client, "single_addresses", lambda name: [f"127.0.0.1:{config.teacher.port}"])

    def show(files: dict[str, str]) -> None:
        for variable in auth.TLS_FILES:
            monkeypatch.delenv(variable, raising=False)
        for variable, file in files.items():
            monkeypatch.setenv(variable, file)

    async def ask(name: str) -> int:
        client = TeacherClient([f"{name}:{config.teacher.port}"])
        try:
            await client.check_vocabulary(tokens)
            return len((await client.score("t", IDS[:9], {"c0": IDS})).logprobs[0])
        finally:
            await client.close()

    async def watch() -> None:
        show(ours)
        serving = asyncio.create_task(server.serve(config))
        async with asyncio.timeout(60):
            while not is_listening(config.teacher.port):
                assert not serving.done(), serving.result()
                await asyncio.sleep(0.01)
        assert await ask("teacher") == 9
        for name, files in (
            ("stranger", ours),  # a name that the certificate does not have
            ("teacher", theirs),
            ("teacher", {**theirs, TLS_CA.name: ours[TLS_CA.name]}),  # trusts the server, and is not trusted
            ("teacher", {}),
        ):
            show(files)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask(name)
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        show(ours)
        assert await ask("teacher") == 9
        signal.raise_signal(signal.SIGTERM)
        await serving

    asyncio.run(watch())


def is_listening(port: int) -> bool:
    with socket.socket() as probe_socket:
        return probe_socket.connect_ex(("127.0.0.1", port)) == 0


def test_half_of_the_tls_settings_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("CALOPD_TLS_CA", str(tmp_path / "ca"))
    with pytest.raises(ConfigError, match="CALOPD_TLS_CERT"):
        auth.server_credentials()
    for variable in auth.TLS_FILES:
        monkeypatch.setenv(variable, str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="cannot read"):
        auth.channel_credentials()
