"""Ports that a local run listens on."""

import socket

from calopd.config.schema import Config
from calopd.core.errors import ConfigError


def local_ports(config: Config) -> dict[str, int]:
    """The ports of a local run by the setting that chooses them; two settings with the same port are refused."""
    ports = {"learner.port": config.learner.port, **teacher_ports(config)}
    ports |= _replica_ports("rollout.port", config.rollout.port, config.rollout.replicas)
    if not config.queue.url:
        ports["queue.port"] = config.queue.port
    _check_different(ports)
    return ports


def teacher_ports(config: Config) -> dict[str, int]:
    """The ports of the teachers that this machine starts; none if they run elsewhere."""
    if config.teacher.addresses:
        return {}
    replicas = config.teacher.replicas
    ports = _replica_ports("teacher.port", config.teacher.port, replicas)
    ports |= _replica_ports("teacher.metrics_port", config.teacher.metrics_port, replicas)
    _check_different(ports)
    return ports


def _replica_ports(key: str, first: int, replicas: int) -> dict[str, int]:
    return {key + (f" + {replica}" if replica else ""): first + replica for replica in range(replicas)}


def _check_different(ports: dict[str, int]) -> None:
    used: dict[int, str] = {}
    for key, port in ports.items():
        if port in used:
            raise ConfigError(f"{key} and {used[port]} are both {port}: choose a different port for each")
        if port > 65_535:
            raise ConfigError(f"{key} is {port}, above the last port 65535: choose a lower one")
        used[port] = key


def check_port(key: str, port: int) -> None:
    """Refuse a port that another process listens on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise ConfigError(
                f"port {port} ({key}) is in use: stop the process that listens on it, or choose another port with "
                f"--set {key.partition(' ')[0]}=PORT"
            ) from None
