"""Health probes and mutual TLS, against a real gRPC server."""

import datetime
import ipaddress
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from calopd.core.errors import ConfigError
from calopd.transport import auth
from calopd.transport import health_check as probe
from tests.ports import free_port

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


def make_certificates(folder: Path) -> dict[str, str]:
    """An authority and a certificate of 127.0.0.1, as the three variables name them."""
    now = datetime.datetime.now(datetime.UTC)
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name)])

    def certificate(public: ec.EllipticCurvePublicKey, subject: x509.Name, is_authority: bool) -> bytes:
        builder = x509.CertificateBuilder(
            issuer, subject, public, x509.random_serial_number(), now, now + datetime.timedelta(days=1)
        )
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        signed = builder.add_extension(x509.SubjectAlternativeName([here]), False).sign(authority, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    folder.mkdir()
    (folder / "ca").write_bytes(certificate(authority.public_key(), issuer, True))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "role")])
    (folder / "cert").write_bytes(certificate(key.public_key(), name, False))
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key").write_bytes(key.private_bytes(*pem))
    return {variable: str(folder / variable.rpartition("_")[2].lower()) for variable in auth.TLS_FILES}


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


def test_half_of_the_tls_settings_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("CALOPD_TLS_CA", str(tmp_path / "ca"))
    with pytest.raises(ConfigError, match="CALOPD_TLS_CERT"):
        auth.server_credentials()
    for variable in auth.TLS_FILES:
        monkeypatch.setenv(variable, str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="cannot read"):
        auth.channel_credentials()
