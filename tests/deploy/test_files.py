"""Files of deploy/ that need no tool to be checked."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from calopd.config import load_config
from calopd.core.errors import ConfigError
from deploy.docker import compose
from deploy.monitoring.grafana import dashboards
from tests.deploy import check, promql

WITHOUT_TOOLS = (
    check.compose_gpus, check.compose_variables, check.compiler_caches, check.dashboard_layout, check.metric_names,
    check.runbook,
)  # fmt: skip


@pytest.mark.parametrize("looks", WITHOUT_TOOLS, ids=lambda looks: looks.__name__)
def test_in_order(looks: Callable[[Path], list[str]]) -> None:
    assert list(looks(check.ROOT)) == []


def test_what_is_made_is_as_its_source_says() -> None:
    """Dashboards and the operator's rules: `make dashboards` after a change."""
    made: dict[Path, str] = dashboards.files()  # type: ignore[attr-defined]  # a folder has its name
    for file, text in made.items():
        assert file.read_text() == text, f"{file.name} differs from its source: run make dashboards"


def test_the_compose_file_is_that_of_the_default_pair() -> None:
    """`make compose` after a change of [resources] or of the generator."""
    config = load_config(check.ROOT / compose.DEFAULT, environ={})
    assert (check.ROOT / compose.TARGET).read_text() == compose.render(config, compose.DEFAULT)
    assert f"\nCONFIG=./{compose.DEFAULT}\n" in (check.ROOT / ".env.example").read_text()


def test_the_tmpfs_holds_the_policies_of_every_pair() -> None:
    """The kept policies, the one that is being written and deltas of half the size of the kept ones, in bfloat16."""
    sizes = {}
    for name in ("qwen3-4b-to-1.7b", "qwen3-30b-to-4b", "qwen3-30b-to-8b"):
        file = Path("configs") / f"{name}.toml"
        made = yaml.safe_load(compose.render(load_config(check.ROOT / file, environ={}), file))
        found = re.search(r"POLICIES_SIZE:-(\d+)g", made["volumes"]["policies"]["driver_opts"]["o"])
        assert found
        sizes[name] = int(found[1])
    billions = {"qwen3-4b-to-1.7b": 1.72, "qwen3-30b-to-4b": 4.02, "qwen3-30b-to-8b": 8.19}
    for name, size in sizes.items():
        needed = (3 + 2 / 2) * 2 * billions[name] * 1e9 / 2**30
        assert needed < size < needed * 1.25


def test_a_configuration_without_gpus_has_no_compose_file() -> None:
    file = CONFIGS / "demo.toml"
    with pytest.raises(ConfigError, match=r"demo\.toml: set resources\.teacher, resources\.rollout"):
        compose.render(load_config(file, environ={}), file)


def test_names_of_an_expression() -> None:
    text = 'sum by (run, le) (rate(a_total{b="c"}[5m])) / on (x) group_left (y) d:e:f > bool 0.5 or f(0.9, g_bucket)'
    assert promql.names_in(text) == {"a_total", "d:e:f", "g_bucket"}
    assert promql.always('a{x=~"b", y!="c>d"} < 0.3 and b >= 2 == bool 3') == (
        'a{x=~"b", y!="c>d"} < bool 0.3 and b >= bool 2 == bool 3'
    )


def test_every_panel_links_to_a_section_that_exists() -> None:
    sections = {panel["id"] for panel in check.pages(check.ROOT)["runbook"]["panels"]}
    links = [
        link for page in check.pages(check.ROOT).values() for panel in page["panels"] for link in panel.get("links", [])
    ]
    assert links
    assert all(int(link["url"].rpartition("=")[2]) in sections for link in links)


CONFIGS = check.ROOT / "configs"
SHIPPED = sorted(file.name for file in CONFIGS.glob("*.toml") if file.name != "paper.toml")


def compose_mounts(chosen: str) -> list[dict[str, Path]]:
    """What each service that reads run.toml finds in /etc/calopd, with `chosen` as its configuration."""
    file = Path("configs") / chosen
    services = yaml.safe_load(compose.render(load_config(check.ROOT / file, environ={}), file))["services"]
    mounts = []
    for service in services.values():
        pairs = [re.fullmatch(r"(.+):/etc/calopd/([^/]+):ro", volume) for volume in service.get("volumes", [])]
        found = {match[2]: match[1] for match in pairs if match}
        if "run.toml" in found:
            mounts.append({name: check.ROOT / text for name, text in found.items()})
    return mounts


def kubernetes_mounts(chosen: str) -> list[dict[str, Path]]:
    """The same for the pods, whose overlay replaces the first key."""
    role = yaml.safe_load((check.ROOT / "deploy/k8s/base/role.yaml").read_text())
    prepare = yaml.safe_load((check.ROOT / "deploy/k8s/components/gpu/prepare.yaml").read_text())
    volumes = [operation["value"] for operation in role if operation["path"].endswith("/volumes")]
    volumes.append(prepare["spec"]["template"]["spec"]["volumes"])
    items = [volume[0]["configMap"]["items"] for volume in volumes]
    keys = [[chosen, *(item["key"] for item in entries[1:])] for entries in items]
    return [
        {item["path"]: CONFIGS / key for item, key in zip(entries, names, strict=True)}
        for entries, names in zip(items, keys, strict=True)
    ]


@pytest.mark.parametrize("chosen", SHIPPED)
def test_a_configuration_finds_its_base_where_it_is_mounted(chosen: str, tmp_path: Path) -> None:
    gpus = load_config(CONFIGS / chosen, environ={}).placement
    mounts = kubernetes_mounts(chosen)
    assert len(mounts) == 2
    if gpus.learner:
        mounts += compose_mounts(chosen)
        assert len(mounts) == 2 + 2 + len(gpus.teachers) + len(gpus.rollouts)  # the model's download and the learner
    for number, mount in enumerate(mounts):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, source in mount.items():
            shutil.copy(source, folder / name)
        assert load_config(folder / "run.toml", environ={}) == load_config(CONFIGS / chosen, environ={})


def test_the_config_map_holds_every_shipped_configuration() -> None:
    generator = yaml.safe_load((CONFIGS / "kustomization.yaml").read_text())["configMapGenerator"]
    assert sorted(generator[0]["files"]) == sorted([*SHIPPED, "paper.toml"])
