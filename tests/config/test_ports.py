"""Ports of a local run."""

import socket
from pathlib import Path

import pytest

from calopd.config import Config, load_config
from calopd.config.ports import check_port, chosen_ports, local_ports, reserved_ports
from calopd.core.errors import ConfigError
from tests.ports import free_port

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


def test_two_runs_side_by_side_have_different_ports() -> None:
    """The second run is started before the services of the first one listen."""
    config = demo("rollout.replicas=2")
    with reserved_ports(config, chosen_ports(config)) as first, reserved_ports(config, chosen_ports(config)) as second:
        assert not set(local_ports(first).values()) & set(local_ports(second).values())
        assert (first.rollout.replicas, first.run.name) == (2, "demo")
    with reserved_ports(config, chosen_ports(config)) as third:
        assert local_ports(third) == local_ports(first)


def test_a_port_that_was_chosen_is_not_replaced() -> None:
    config = demo(f"learner.port={free_port()}")
    assert chosen_ports(config) == {"learner.port"}
    with (
        reserved_ports(config, chosen_ports(config)),
        pytest.raises(ConfigError, match=r"learner\.port\) is in use by another run: .*--set learner\.port=PORT"),
        reserved_ports(config, chosen_ports(config)),
    ):
        pass


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} \(queue\.port\) is in use.*--set queue\.port=PORT"):
            check_port("queue.port", port)
