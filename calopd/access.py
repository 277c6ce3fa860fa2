"""Who may come in: the address that services listen at, and the token that calls must carry."""

import hmac
import ipaddress
import os

from calopd.errors import ConfigError


def token() -> str:
    """The bearer token of gRPC and HTTP; '' = none is asked for."""
    return os.environ.get("CALOPD_TOKEN", "")


def host() -> str:
    """The address to listen at: this machine only, unless CALOPD_HOST says otherwise and a token is set."""
    address = os.environ.get("CALOPD_HOST", "127.0.0.1")
    if not token() and not ipaddress.ip_address(address).is_loopback:
        raise ConfigError(f"CALOPD_HOST is {address}, open to others, but CALOPD_TOKEN is not set: set one")
    return address


def is_valid(given: str, expected: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())
