"""Ports that a local run listens on. Those that nobody chose are free ones, so that runs work side by side."""

import socket
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

from calopd.config.listeners import local_settings
from calopd.config.schema import Config
from calopd.core.errors import ConfigError

LAST_PORT = 65_535
TEACHER_PORTS = ("teacher.port", "teacher.metrics_port")


def local_ports(config: Config) -> dict[str, int]:
    """The ports of a local run by the setting that chooses them; two settings with the same port are refused."""
    return _ports(config, local_settings())


def teacher_ports(config: Config) -> dict[str, int]:
    """The ports of the teachers that this machine starts; none if they run elsewhere."""
    return _ports(config, TEACHER_PORTS)


def _ports(config: Config, keys: Collection[str]) -> dict[str, int]:
    ports: dict[str, int] = {}
    for key in keys:
        first = _setting(config, key)
        for replica in range(_replicas(config, key)):
            ports[key + (f" + {replica}" if replica else "")] = first + replica
    _check_different(ports)
    return ports


def _setting(config: Config, key: str) -> int:
    section, _, name = key.partition(".")
    return int(getattr(getattr(config, section), name))


def _replicas(config: Config, key: str) -> int:
    """Consecutive ports that this machine needs from a setting; 0 for a server that runs elsewhere."""
    if key in TEACHER_PORTS:
        return 0 if config.teacher.addresses else config.teacher.replicas
    if key == "queue.port":
        return 0 if config.queue.url else 1
    return config.rollout.replicas if key == "rollout.port" else 1


def _check_different(ports: dict[str, int]) -> None:
    used: dict[int, str] = {}
    for key, port in ports.items():
        if port in used:
            raise ConfigError(f"{key} and {used[port]} are both {port}: choose a different port for each")
        if port > LAST_PORT:
            raise ConfigError(f"{key} is {port}, above the last port {LAST_PORT}: choose a lower one")
        used[port] = key


def chosen_ports(config: Config) -> set[str]:
    """The ports that a configuration names itself."""
    return {
        f"{name}.{key}"
        for name in ("learner", "teacher", "rollout", "queue")
        for key in getattr(config, name).model_fields_set
        if key.endswith("port")
    }


@contextmanager
def reserved_ports(config: Config, chosen: Collection[str], *, learner: bool = True) -> Iterator[Config]:
    """The configuration with free ports, held against other runs for the length of the block.

    `chosen` are settings whose port must be free. Any other port is replaced by a free one if it is in use. Without
    `learner` only the teachers' ports are reserved.
    """
    with ExitStack() as guards:
        keys = local_settings() if learner else TEACHER_PORTS
        taken = set(_ports(config, [key for key in keys if key in chosen]).values())
        for key in sorted(keys, key=lambda key: key not in chosen):
            first, count = _setting(config, key), _replicas(config, key)
            if key in chosen:
                for port in range(first, first + count):
                    check_port(key, port)
                    if not _guard(port, guards):
                        raise ConfigError(f"port {port} ({key}) is in use by another run: {_other_port(key)}")
                continue
            while not _reserve(range(first, first + count), taken, guards):
                first += count
                if first + count > LAST_PORT:
                    raise ConfigError(f"no free port at {_setting(config, key)} or above for {key}: {_other_port(key)}")
            taken |= set(range(first, first + count))
            section, _, name = key.partition(".")
            changed = getattr(config, section).model_copy(update={name: first})
            config = config.model_copy(update={section: changed})
        yield config


def _reserve(ports: range, taken: Collection[int], guards: ExitStack) -> bool:
    """Guard all of these ports; False if one is in use."""
    if any(port in taken or not _is_free(port) for port in ports):
        return False
    with ExitStack() as own:
        if not all(_guard(port, own) for port in ports):
            return False
        guards.push(own.pop_all())
    return True


def _guard(port: int, guards: ExitStack) -> bool:
    """Claim a port before its service listens: services take a while to start. The kernel frees the name at our end."""
    guard = guards.enter_context(socket.socket(socket.AF_UNIX))
    try:
        guard.bind(f"\0calopd/port/{port}")
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _other_port(key: str) -> str:
    return f"choose another one with --set {key.partition(' ')[0]}=PORT"


def check_port(key: str, port: int) -> None:
    """Refuse a port that another process listens on."""
    if not _is_free(port):
        raise ConfigError(f"port {port} ({key}) is in use: stop the process that listens on it, or {_other_port(key)}")
