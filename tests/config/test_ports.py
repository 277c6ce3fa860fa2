"""Ports of a local run."""

import socket
from pathlib import Path

import pytest

from calopd.config import Config, load_config
from calopd.config.ports import check_port, local_ports
from calopd.core.errors import ConfigError

DEMO = Path(__file__).parents[2] / "configs" / "demo.toml"


def demo(*settings: str) -> Config:
    return load_config(DEMO, settings, {})


def test_ports_of_what_runs_elsewhere_are_not_used() -> None:
    assert set(local_ports(demo("rollout.replicas=2", "rollout.port=8091"))) == {
        "learner.port", "teacher.port", "teacher.metrics_port", "rollout.port", "rollout.port + 1", "queue.port",
    }  # fmt: skip
    elsewhere = demo("teacher.addresses=['host:1']", "queue.url=redis://host:1/0")
    assert set(local_ports(elsewhere)) == {"learner.port", "rollout.port"}


def test_two_settings_with_one_port_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.port \+ 1 and learner\.port are both 7001"):
        local_ports(demo("rollout.replicas=2", "rollout.port=7000", "learner.port=7001"))


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} \(queue\.port\) is in use.*--set queue\.port=PORT"):
            check_port("queue.port", port)
