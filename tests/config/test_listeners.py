"""The list of ports against everything that declares one."""

import re

import pytest
import yaml

from calopd.config import Config
from calopd.config.listeners import LISTENERS, local_settings
from tests.services.processes import ROOT

PORTS = {listener.port for listener in LISTENERS if listener.port}


def test_every_port_of_the_settings_is_listed_with_its_default():
    settings = {
        f"{section}.{key}": field.default
        for section, whole in Config.model_fields.items()
        for key, field in getattr(whole.annotation, "model_fields", {}).items()
        if key.endswith("port")
    }
    assert {listener.setting: listener.port for listener in LISTENERS if listener.setting} == settings
    assert set(local_settings()) == set(settings)


def test_a_guarded_port_names_its_guard():
    for listener in LISTENERS:
        assert listener.guard or not listener.guarded, listener.name


@pytest.mark.parametrize("folder", ["base", "components", "overlays"])
def test_manifests_open_only_listed_ports(folder):
    found = set()
    for file in (ROOT / "deploy" / "k8s" / folder).rglob("*.yaml"):
        text = file.read_text()
        found |= {int(port) for port in re.findall(r"(?:containerPort|\bport|targetPort): (\d+)", text)}
    # DNS and the hub are of others: pods connect to them.
    assert found - {53, 443} <= PORTS


def test_images_and_compose_open_only_listed_ports():
    exposed = re.findall(r"^EXPOSE (.*)$", (ROOT / "deploy" / "docker" / "Dockerfile").read_text(), re.M)
    assert {int(port) for line in exposed for port in line.split()} <= PORTS
    for name in ("docker-compose.yml", "docker-compose.cpu.yml", "docker-compose.override.yml"):
        services = yaml.safe_load((ROOT / name).read_text())["services"]
        for service in services.values():
            for published in service.get("ports", []):
                host, _, port = published.rpartition(":")
                assert host.startswith("127.0.0.1:"), "reached from this host only"
                assert int(port) in PORTS
