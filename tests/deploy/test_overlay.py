"""Overlays of one's own: the example with its choices, and those that `calopd plan --overlay` writes."""

import re
import shutil
from pathlib import Path

import pytest

from calopd.cli.registry import find_command
from calopd.config import load_config
from calopd.core.errors import ConfigError
from calopd.planning import overlay
from tests.deploy import check, manifests, scheduling
from tests.deploy.scheduling import cpu_node, gpu_node

EXAMPLE = check.ROOT / "deploy/k8s/overlays/my-cluster.example/kustomization.yaml"


def test_the_example_is_what_the_plan_writes() -> None:
    head = EXAMPLE.read_text().splitlines()[0].removeprefix("# ")
    key = "qwen3-4b-to-1.7b.toml"
    placement = load_config(check.ROOT / "configs" / key, environ={}).placement
    made = overlay.render_overlay(placement, title=head, name="my-cluster", base="../gpu-8", key=key)
    assert EXAMPLE.read_text() == made


def copied(folder: Path) -> Path:
    """The files that overlays are rendered from, with secrets."""
    for name in ("deploy", "configs"):
        shutil.copytree(check.ROOT / name, folder / name)
    secrets = folder / "deploy/k8s/secrets"
    shutil.copy(secrets / "secrets.env.example", secrets / "secrets.env")
    return folder


@pytest.fixture
def all_chosen(tmp_path: Path) -> list[manifests.Object]:
    """What the example makes with every choice that it offers."""
    file = copied(tmp_path) / EXAMPLE.relative_to(check.ROOT)
    file.write_text(re.sub(r"^(  )?#(?=- |  |components)", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE))
    return check.render(tmp_path, "my-cluster.example")


def test_every_choice_of_the_example_can_be_made(all_chosen: list[manifests.Object]) -> None:
    objects = {manifests.name_of(o): o for o in all_chosen}
    assert "PodMonitor/learner" in objects
    assert objects["PersistentVolumeClaim/runs"]["spec"]["storageClassName"] == "fast"
    assert objects["StatefulSet/redis"]["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    pod = objects["Job/learner"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"karpenter.sh/capacity-type": "spot"}
    assert [toleration["key"] for toleration in pod["tolerations"]] == ["nvidia.com/gpu", "spot"]
    assert pod["priorityClassName"] == "low"
    assert pod["containers"][0]["image"] == "registry.example.com/calopd/learner:local"
    redis = objects["StatefulSet/redis"]["spec"]["template"]["spec"]
    assert redis["containers"][0]["image"] == "registry.example.com/redis:7.2-bookworm"


def test_cheaper_nodes_hold_all_but_redis(all_chosen: list[manifests.Object]) -> None:
    spot = gpu_node("spot")
    spot.labels, spot.taints = {"karpenter.sh/capacity-type": "spot"}, ("nvidia.com/gpu", "spot")
    cpu = cpu_node("cpu")
    assert scheduling.pending(all_chosen, [spot, cpu]) == []
    assert [pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in cpu.pods] == ["redis"]


def test_a_planned_overlay_runs_its_own_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copied(tmp_path))
    config = load_config(Path("configs/qwen3-30b-to-8b.toml"), environ={})
    overlay.write_overlay(Path("deploy/k8s/overlays/my-cluster"), config, "A plan.")
    objects = check.render(tmp_path, "my-cluster")
    assert manifests.faults(objects) == []
    assert manifests.chosen_config(objects) == "run.toml"
    assert list(manifests.misplaced(objects, config.placement)) == []
    (configs,) = (o for o in objects if o["kind"] == "ConfigMap" and "run.toml" in o["data"])
    (tmp_path / "run.toml").write_text(configs["data"]["run.toml"])
    assert load_config(tmp_path / "run.toml", environ={}) == config


@pytest.mark.parametrize("name", ["kustomization.yaml", "run.toml"])
def test_a_plan_does_not_overwrite_an_overlay(name: str, tmp_path: Path) -> None:
    """Found before anything is computed: this configuration cannot even be read."""
    (tmp_path / name).write_text("# mine\n")
    words = ["plan", str(tmp_path / "no-such.toml"), "--overlay", str(tmp_path)]
    command, rest = find_command(words)
    with pytest.raises(ConfigError, match=f"has a {name} already: choose another folder, or remove it"):
        command.module.run(command.parser().parse_args(rest))
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "# mine\n"


def test_a_plan_without_gpus_has_no_overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copied(tmp_path))
    with pytest.raises(ConfigError, match=r"set resources\.teacher"):
        overlay.write_overlay(tmp_path / "none", load_config(Path("configs/demo.toml"), environ={}), "A plan.")
    assert not (tmp_path / "none").exists()
