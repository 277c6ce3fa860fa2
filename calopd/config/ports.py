"""Ports that a local run listens on."""

import socket

from calopd.config.schema import Config
from calopd.core.errors import ConfigError


def local_ports(config: Config) -> dict[str, int]:
    """The ports of a local run by the setting that chooses them; two settings with the same port are refused."""
    ports = {"learner.port": config.learner.port}
    if not config.teacher.addresses:
        ports |= {"teacher.port": config.teacher.port, "teacher.metrics_port": config.teacher.metrics_port}
    for replica in range(config.rollout.replicas):
        ports["rollout.port" + (f" + {replica}" if replica else "")] = config.rollout.port + replica
    if not config.queue.url:
        ports["queue.port"] = config.queue.port
    used: dict[int, str] = {}
    for key, port in ports.items():
        if port in used:
            raise ConfigError(f"{key} and {used[port]} are both {port}: choose a different port for each")
        used[port] = key
    return ports


def check_port(key: str, port: int) -> None:
    """Refuse a port that another process listens on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise ConfigError(
                f"port {port} ({key}) is in use: stop the process that listens on it, or choose another port with "
                f"--set {key}=PORT"
            ) from None
