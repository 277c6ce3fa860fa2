"""Access control: the address that services listen on, the bearer token of calls, and mutual TLS for gRPC."""

import hmac
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING

from calopd.core.environment import HOST, TLS_CA, TLS_CERT, TLS_KEY, TOKEN
from calopd.core.errors import ConfigError

if TYPE_CHECKING:
    import grpc

TLS_FILES = (TLS_CA.name, TLS_CERT.name, TLS_KEY.name)


def token() -> str:
    """Return the bearer token of gRPC and HTTP; '' = none is required."""
    return os.environ.get(TOKEN.name, TOKEN.default)


def host() -> str:
    """Return the address to listen on: loopback, unless CALOPD_HOST names another one and a token is set."""
    address = os.environ.get(HOST.name, HOST.default)
    address = HOST.default if address == "localhost" else address
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise ConfigError(f"CALOPD_HOST is {address!r}: expected an IP address, such as 127.0.0.1 or 0.0.0.0") from None
    if not token() and not ipaddress.ip_address(address).is_loopback:
        raise ConfigError(f"CALOPD_HOST is {address}, open to others, but CALOPD_TOKEN is not set: set one")
    return address


def is_valid(given: str, expected: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


def _tls_files() -> tuple[bytes, bytes, bytes] | None:
    """Return authority, certificate and key if the three variables are set; None = no TLS."""
    named = [os.environ.get(name, "") for name in TLS_FILES]
    if not any(named):
        return None
    if not all(named):
        raise ConfigError(f"mutual TLS needs all of {', '.join(TLS_FILES)}: only some are set")
    try:
        ca, certificate, key = (Path(file).read_bytes() for file in named)
    except OSError as error:
        raise ConfigError(f"mutual TLS: cannot read {error.filename}: {error.strerror}") from None
    return ca, certificate, key


def server_credentials() -> "grpc.ServerCredentials | None":
    """Return credentials that require client certificates of the same authority; None = no TLS."""
    import grpc

    if (files := _tls_files()) is None:
        return None
    ca, certificate, key = files
    return grpc.ssl_server_credentials([(key, certificate)], root_certificates=ca, require_client_auth=True)


def channel_credentials() -> "grpc.ChannelCredentials | None":
    """Return the credentials of a client; None = no TLS."""
    import grpc

    if (files := _tls_files()) is None:
        return None
    ca, certificate, key = files
    return grpc.ssl_channel_credentials(ca, private_key=key, certificate_chain=certificate)
