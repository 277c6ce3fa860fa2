"""The address that services listen on."""

import pytest

from calopd.core.environment import HOST, TOKEN
from calopd.core.errors import ConfigError
from calopd.transport import auth


@pytest.mark.parametrize(
    ("given", "token", "address"),
    [
        (None, "", "127.0.0.1"),
        ("localhost", "", "127.0.0.1"),
        ("127.0.0.2", "", "127.0.0.2"),
        ("::1", "", "::1"),
        ("0.0.0.0", "secret", "0.0.0.0"),
    ],
)
def test_services_listen_on_loopback_unless_told_otherwise(monkeypatch, given, token, address):
    monkeypatch.setenv(TOKEN.name, token)
    monkeypatch.delenv(HOST.name, raising=False)
    if given:
        monkeypatch.setenv(HOST.name, given)
    assert auth.host() == address


@pytest.mark.parametrize(
    ("given", "token", "message"),
    [
        ("0.0.0.0", "", "CALOPD_TOKEN is not set: set one"),
        ("10.0.0.1", "", "CALOPD_TOKEN is not set: set one"),
        ("my-host", "secret", "CALOPD_HOST is 'my-host': expected an IP address"),
        ("", "secret", "CALOPD_HOST is '': expected an IP address"),
    ],
)
def test_an_address_that_others_reach_needs_a_token(monkeypatch, given, token, message):
    monkeypatch.setenv(TOKEN.name, token)
    monkeypatch.setenv(HOST.name, given)
    with pytest.raises(ConfigError, match=message):
        auth.host()
