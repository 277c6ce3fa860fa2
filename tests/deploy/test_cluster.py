"""deploy/k8s/cluster.sh with a kubectl that only answers from files, and overlays rendered by the real one."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from calopd.config import load_config
from calopd.core.errors import ConfigError
from calopd.local.entry_point import TEMPORARY_EXIT
from calopd.planning import overlay
from services.learner.peer_loss import PEER_LOST_EXIT
from tests.deploy import check, manifests
from tests.deploy.test_scheduling import rendered

FAKE = """#!/bin/sh
printf '%s\n' "$*" >> "$CALLS"
case "$*" in
  *name=learner\ --dry-run=server*) cat "$CALLS.learner" >&2; test ! -s "$CALLS.learner" ;;
  *"get deployment teacher"*) cat "$CALLS.teachers" ;;
  *"get pods"*Running*) cat "$CALLS.running" ;;
  *"get pods"*) printf 'pod/learner-0-old\\npod/learner-0-new\\n' ;;
esac
"""


class Cluster:
    def __init__(self, root: Path) -> None:
        self.root, self.calls = root, root / "calls"
        shutil.copytree(check.ROOT / "deploy/k8s", root / "deploy/k8s", ignore=shutil.ignore_patterns("secrets.env"))
        kubectl = root / "bin" / "kubectl"
        kubectl.parent.mkdir()
        kubectl.write_text(FAKE)
        kubectl.chmod(0o755)
        for answer, text in (("learner", ""), ("teachers", "2"), ("running", "")):
            self.answers(answer, text)

    def answers(self, name: str, text: str) -> None:
        self.calls.with_suffix(f".{name}").write_text(text)

    def run(self, *words: str, code: int = 0) -> list[str]:
        """What kubectl was asked for."""
        path = f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [str(self.root / "deploy/k8s/cluster.sh"), *words], text=True, capture_output=True,
            env={**os.environ, "PATH": path, "CALLS": str(self.calls)},
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        self.said = done.stderr
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return lines


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_up_replaces_the_jobs_that_changed_and_no_others(cluster: Cluster) -> None:
    assert not any(" delete " in call for call in cluster.run("up", "gpu-8"))
    cluster.answers("learner", 'The Job "learner" is invalid: spec.template: Invalid value: {...}: field is immutable')
    calls = cluster.run("up", "gpu-8")
    deleted = [call for call in calls if " delete " in call]
    assert deleted == ["-n calopd delete job learner --cascade=foreground --wait --ignore-not-found"]
    applied = [number for number, call in enumerate(calls) if re.fullmatch(r"apply -k \S+", call)]
    assert len(applied) == 1
    assert calls.index(deleted[0]) < applied[0]


def test_up_deletes_nothing_for_another_error(cluster: Cluster) -> None:
    cluster.answers("learner", 'namespaces "calopd" not found')
    assert not any(" delete " in call for call in cluster.run("up", "gpu-8"))


def test_up_starts_teachers_that_were_stopped_beside_an_autoscaler(cluster: Cluster) -> None:
    cluster.answers("teachers", "0")
    assert "-n calopd scale deployment teacher --replicas=1" in cluster.run("up", "gpu-multi")


def test_up_makes_secrets_that_others_cannot_read(cluster: Cluster) -> None:
    cluster.run("up", "cpu-demo")
    secrets = cluster.root / "deploy/k8s/secrets/secrets.env"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    text = secrets.read_text()
    assert len(re.findall(r"^(?:CALOPD_TOKEN|REDIS_PASSWORD)=[0-9a-f]{48}$", text, re.MULTILINE)) == 2
    cluster.run("up", "cpu-demo")
    assert secrets.read_text() == text


def test_an_unknown_overlay_is_refused_with_the_known_ones(cluster: Cluster) -> None:
    assert cluster.run("up", "gpu-9", code=78) == []
    assert "no overlay gpu-9" in cluster.said
    assert "gpu-multi" in cluster.said


def test_logs_are_those_of_the_pod_that_runs(cluster: Cluster) -> None:
    assert cluster.run("logs")[-1] == "-n calopd logs -f pod/learner-0-new -c learner"
    cluster.answers("running", "pod/learner-0-live\n")
    assert cluster.run("logs")[-1] == "-n calopd logs -f pod/learner-0-live -c learner"


def test_stop_keeps_claims_and_redis(cluster: Cluster) -> None:
    calls = cluster.run("stop")
    assert any('patch job learner --type=merge -p {"spec": {"suspend": true}}' in call for call in calls)
    assert "-n calopd scale deployment teacher rollout --replicas=0" in calls
    assert not any(" delete " in call for call in calls)


@pytest.mark.parametrize("name", check.OVERLAYS)
def test_applying_again_resumes_a_stopped_run(name: str) -> None:
    (job,) = (o for o in rendered(name) if manifests.name_of(o) == "Job/learner")
    assert job["spec"]["suspend"] is False


@pytest.mark.parametrize("name", check.OVERLAYS)
def test_the_loss_of_another_pod_or_of_redis_is_no_failure_of_the_job(name: str) -> None:
    (job,) = (o for o in rendered(name) if manifests.name_of(o) == "Job/learner")
    rules = job["spec"]["podFailurePolicy"]["rules"]
    ignored = [rule["onExitCodes"]["values"] for rule in rules if rule["action"] == "Ignore" and "onExitCodes" in rule]
    assert ignored == [[TEMPORARY_EXIT, PEER_LOST_EXIT]]


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


def test_every_choice_of_the_example_can_be_made(tmp_path: Path) -> None:
    file = copied(tmp_path) / EXAMPLE.relative_to(check.ROOT)
    file.write_text(re.sub(r"^(  )?#(?=- |  |components)", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE))
    objects = {manifests.name_of(o): o for o in check.render(tmp_path, "my-cluster.example")}
    assert "PodMonitor/learner" in objects
    assert objects["PersistentVolumeClaim/runs"]["spec"]["storageClassName"] == "fast"
    assert objects["StatefulSet/redis"]["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    pod = objects["Job/learner"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"karpenter.sh/capacity-type": "spot"}
    assert [toleration["key"] for toleration in pod["tolerations"]] == ["nvidia.com/gpu", "spot"]
    assert pod["priorityClassName"] == "low"
    assert pod["containers"][0]["image"] == "registry.example.com/calopd/learner:local"


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


def test_a_plan_without_gpus_has_no_overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copied(tmp_path))
    with pytest.raises(ConfigError, match=r"set resources\.teacher"):
        overlay.write_overlay(tmp_path / "none", load_config(Path("configs/demo.toml"), environ={}), "A plan.")
    assert not (tmp_path / "none").exists()
