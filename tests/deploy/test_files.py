"""Files of deploy/ that need no tool to be checked."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from calopd.config import load_config
from calopd.core.errors import ConfigError
from deploy.docker import compose
from deploy.monitoring.grafana import dashboards
from tests.deploy import check, control_plane, images, promql, stack
from tests.docs.commands import docker_commands

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
    """`make compose` after a change of a setting, of the default pair or of the generator."""
    config = load_config(check.ROOT / compose.DEFAULT, environ={})
    assert (check.ROOT / compose.TARGET).read_text() == compose.render(config, compose.DEFAULT)
    assert f"\nCONFIG=./{compose.DEFAULT}\n" in (check.ROOT / ".env.example").read_text()


def test_another_configuration_replaces_the_containers_of_every_role() -> None:
    """The file has the same path: only the digest tells compose that the containers are out of date."""

    def services(*overrides: str) -> dict[str, Any]:
        config = load_config(check.ROOT / compose.DEFAULT, list(overrides), environ={})
        loaded: dict[str, Any] = yaml.safe_load(compose.render(config, compose.DEFAULT))["services"]
        return loaded

    assert services() == services()
    before, after = services(), services("run.name=another")
    assert [name for name in before if before[name] == after[name]] == []


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


def test_a_role_that_does_not_fit_its_gpus_has_no_compose_file() -> None:
    file = check.ROOT / "configs" / "qwen3-30b-to-8b.toml"
    config = load_config(file, ["resources.learner=2"], environ={})
    with pytest.raises(ConfigError, match=r"learner rank 0: [\d.]+ GiB of [\d.]+ usable: .*learner"):
        compose.render(config, file)


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


def test_no_panel_draws_flags_beside_other_values() -> None:
    flags = {"up", "calopd_teacher_canary_healthy", "calopd_learner_queue_up"}
    drawn = set()
    for page in check.pages(check.ROOT).values():
        for panel in page["panels"]:
            names = {name for target in panel.get("targets", []) for name in promql.names_in(target["expr"])}
            assert names <= flags or not names & flags, panel["title"]
            drawn |= names
    assert flags < drawn


def test_every_panel_links_to_a_section_that_exists() -> None:
    sections = {panel["id"] for panel in check.pages(check.ROOT)["runbook"]["panels"]}
    links = [
        link for page in check.pages(check.ROOT).values() for panel in page["panels"] for link in panel.get("links", [])
    ]
    assert links
    assert all(int(link["url"].rpartition("=")[2]) in sections for link in links)


def test_in_containers_the_learner_alone_writes_runs_and_policies() -> None:
    roles = yaml.safe_load((check.ROOT / "deploy/docker/roles.yml").read_text())["services"]
    for name in ("teacher", "rollout"):
        assert all(volume.endswith(":ro") for volume in roles[name]["volumes"]), name
    assert roles["learner"]["volumes"] == ["models:/models:ro", "runs:/runs", "policies:/policies"]


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


def test_a_control_plane_needs_kubectl_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in control_plane.BINARIES:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert control_plane.missing(str(tmp_path)) == ["kubectl"]
    (tmp_path / "kubectl").touch(mode=0o755)
    assert control_plane.missing(str(tmp_path)) == []
    (tmp_path / "etcd").unlink()
    assert control_plane.missing(str(tmp_path)) == ["etcd"]


@pytest.mark.parametrize(("every", "lines"), [(30, 2), (0, 4)])
def test_the_test_of_the_stack_says_what_it_waits_for(
    every: float, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stack, "SAID_EVERY", every)
    answers = iter([False, False, True])
    stack.wait("a step", lambda: next(answers))
    said = capsys.readouterr().out.splitlines()
    assert len(said) == lines
    assert said[0] == "a step: waiting"
    assert all(re.fullmatch(r"a step: waiting for \d+ s", line) for line in said[1:-1])
    assert re.fullmatch(r"a step: [\d.]+ s", said[-1])


def test_every_documented_docker_command_has_its_moment_in_the_test_of_the_stack() -> None:
    commands = docker_commands()
    assert {command.page for command in commands} >= {"docs/deploy.md", "docs/operations.md"}
    kinds = {stack.kind_of(command) for command in commands if not stack.excepted(command)}
    assert kinds == set(stack.KINDS)
    for beginning in stack.NOT_EXECUTED:
        assert any(command.text.startswith(beginning) for command in commands), beginning


def test_the_documented_move_is_executed_on_the_stack_of_the_test() -> None:
    commands = [stack.of_this_stack(c.text) for c in docker_commands() if " tar " in c.text]
    assert [c.removeprefix(f"{images.DOCKER} run --rm --user 0 -v calopd-test_runs:/runs") for c in commands] == [
        ':ro -v "$PWD:/out" calopd/learner:local-cpu tar -C /runs -czf /out/run.tgz demo',
        ' -v "$PWD:/in:ro" calopd/learner:local-cpu tar -C /runs -xzf /in/run.tgz',
    ]
