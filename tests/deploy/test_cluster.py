"""deploy/k8s/cluster.sh with a kubectl that only answers from files, and manifests rendered by the real one."""

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from calopd.local.entry_point import RESTART_EXIT, TEMPORARY_EXIT
from services.learner.peer_loss import PEER_LOST_EXIT
from tests.deploy import check, manifests, scheduling
from tests.deploy.test_scheduling import ONE_NODE, SEVERAL, rendered

FAKE = """#!/bin/sh
printf '%s\n' "$*" >> "$CALLS"
case "$*" in
  *name=learner\ --dry-run=server*) cat "$CALLS.dry-run" >&2; test ! -s "$CALLS.dry-run" ;;
  *"get deployment teacher"*) cat "$CALLS.teachers" ;;
  *"get pods"*Running*) cat "$CALLS.running" ;;
  *"get job "*.status.conditions*) cat "$CALLS.failed-$5" 2>/dev/null || true ;;
  *"get job "*) key="${*##*{.spec.}"; cat "$CALLS.$5/${key%?}" 2>/dev/null || true ;;
  *"get pvc data"*) cat "$CALLS.claim" ;;
  "kustomize "*) echo "manifests of $2" ;;
  *"apply -f -") cat > "$CALLS.applied" ;;
  *"exec -i files -- sh -ec"*) exec sh -ec "$9" "$CALLS.volumes${10}" ;;
  *" -- python -c "*) exec python3 -c "$(printf %s "${10}" | sed s/:8080/:1/)" ;;
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
        for answer, text in (("dry-run", ""), ("teachers", "2"), ("running", ""), ("claim", "pvc/data")):
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
        self.said = done.stdout + done.stderr
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return lines


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_up_replaces_the_jobs_that_changed_and_no_others(cluster: Cluster) -> None:
    assert not any(" delete " in call for call in cluster.run("up", "gpu-8"))
    cluster.answers("dry-run", 'The Job "learner" is invalid: spec.template: Invalid value: {...}: field is immutable')
    calls = cluster.run("up", "gpu-8")
    deleted = [call for call in calls if " delete " in call]
    assert deleted == ["-n calopd delete job learner --cascade=foreground --wait --ignore-not-found"]
    applied = [number for number, call in enumerate(calls) if re.fullmatch(r"apply -k \S+", call)]
    assert len(applied) == 1
    assert calls.index(deleted[0]) < applied[0]


def test_up_deletes_nothing_for_another_error(cluster: Cluster) -> None:
    cluster.answers("dry-run", 'namespaces "calopd" not found')
    assert not any(" delete " in call for call in cluster.run("up", "gpu-8"))


@pytest.mark.parametrize("job", ["prepare", "learner"])
def test_up_replaces_a_job_that_failed(cluster: Cluster, job: str) -> None:
    cluster.answers(f"failed-{job}", "True")
    calls = cluster.run("up", "gpu-8")
    assert f"job {job} has failed: replacing it" in cluster.said
    deleted = [call for call in calls if " delete " in call]
    assert deleted == [f"-n calopd delete job {job} --cascade=foreground --wait --ignore-not-found"]
    cluster.answers(f"failed-{job}", "False")
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


def test_status_of_a_learner_that_is_still_starting(cluster: Cluster) -> None:
    cluster.answers("running", "pod/learner-0-live\n")
    cluster.run("status")
    assert cluster.said.endswith("\nthe learner has no status page yet\n")


def test_stop_keeps_claims_and_redis(cluster: Cluster) -> None:
    calls = cluster.run("stop")
    assert any('patch job learner --type=merge -p {"spec": {"suspend": true}}' in call for call in calls)
    assert "-n calopd scale deployment teacher rollout --replicas=0" in calls
    assert not any(" delete " in call for call in calls)


def answer_jobs(cluster: Cluster, overlay: str, *, stopped: bool) -> list[manifests.Object]:
    """Let the cluster answer for the Jobs of an overlay; give back the overlay's objects."""
    objects = rendered(overlay)
    for job in (o for o in objects if o["kind"] == "Job"):
        template, answers = job["spec"]["template"], cluster.calls.with_suffix(f".{job['metadata']['name']}")
        answers.mkdir()
        (answers / "suspend").write_text(str(stopped).lower())
        node = answers / r"template.metadata.labels.calopd\.io" / "node"
        node.parent.mkdir()
        node.write_text(template["metadata"]["labels"].get("calopd.io/node", ""))
        for key in PLACED:
            if key in template["spec"]:
                (answers / f"template.spec.{key}").write_text(json.dumps(template["spec"][key]))
        container = template["spec"]["containers"][0]
        (answers / "template.spec.containers[0].image").write_text(container["image"])
        (answers / "template.spec.containers[0].resources").write_text(json.dumps(container["resources"]))
    return objects


PLACED = ("nodeSelector", "tolerations", "affinity")


def temporary_pod(cluster: Cluster, objects: list[manifests.Object], like: str) -> manifests.Object:
    """The workload of the pod that was applied: in order, and where the pods of a Job could run."""
    pod = yaml.safe_load(cluster.calls.with_suffix(".applied").read_text())
    workload = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "files"}, "spec": {"template": pod}}
    assert manifests.faults([*objects, workload]) == []
    (model,) = (pod for job, pod in manifests.pods(objects) if manifests.name_of(job) == f"Job/{like}")
    for key in PLACED:
        assert (pod["spec"][key] or None) == model["spec"].get(key)
    assert (pod["metadata"]["labels"]["calopd.io/node"] or None) == model["metadata"]["labels"].get("calopd.io/node")
    for key in ("image", "resources"):
        assert pod["spec"]["containers"][0][key] == model["spec"]["containers"][0][key]
    return workload


def packed(folder: Path) -> str:
    """The archive of a run; the cluster has another run, and one of the same name."""
    for run, file in (
        ("new/mine", "config.toml"),
        ("calls.volumes/runs/mine", "older"),
        ("calls.volumes/runs/other", "metrics.jsonl"),
    ):
        (folder / run).mkdir(parents=True)
        (folder / run / file).write_text("")
    subprocess.run(["tar", "-C", str(folder / "new"), "-czf", str(folder / "run.tgz"), "mine"], check=True)
    return str(folder / "run.tgz")


DELETED = "-n calopd delete pod files --ignore-not-found"


@pytest.mark.parametrize("name", ["cpu-demo", "gpu-multi"])
def test_a_run_is_restored_by_a_temporary_pod(cluster: Cluster, name: str) -> None:
    objects, archive = answer_jobs(cluster, name, stopped=True), packed(cluster.root)
    calls = cluster.run("restore", archive)
    assert calls[-1] == DELETED
    assert calls.index("-n calopd wait --for=condition=Ready pod/files --timeout=10m") > calls.index(DELETED)
    found = {
        str(file.relative_to(cluster.root / "calls.volumes/runs"))
        for file in cluster.root.glob("calls.volumes/runs/*/*")
    }
    assert found == {"mine/config.toml", "other/metrics.jsonl"}
    temporary_pod(cluster, objects, "learner")


def test_an_archive_that_is_cut_replaces_nothing_and_leaves_no_pod(cluster: Cluster) -> None:
    answer_jobs(cluster, "gpu-8", stopped=True)
    archive = Path(packed(cluster.root))
    archive.write_bytes(archive.read_bytes()[:-20])
    assert cluster.run("restore", str(archive), code=2)[-1] == DELETED
    assert (cluster.root / "calls.volumes/runs/mine/older").exists()


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("name", ["gpu-8", "gpu-multi"])
def test_problems_are_copied_beside_the_roles(cluster: Cluster, name: str, stopped: bool) -> None:
    """All GPUs are taken while the run is not stopped: the pod asks for none."""
    objects = answer_jobs(cluster, name, stopped=stopped)
    data = cluster.root / "calls.volumes/calopd/data"
    data.mkdir(parents=True)
    (data / "other.jsonl").write_text("kept")
    (data / "my problems.jsonl").write_text("old")
    (cluster.root / "my problems.jsonl").write_text("new")
    assert cluster.run("data", str(cluster.root / "my problems.jsonl"))[-1] == DELETED
    assert {file.name: file.read_text() for file in data.iterdir()} == {
        "other.jsonl": "kept",
        "my problems.jsonl": "new",
    }
    workload = temporary_pod(cluster, objects, "learner" if stopped else "prepare")
    pod = workload["spec"]["template"]["spec"]
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "data"}
    assert pod["containers"][0]["volumeMounts"][0]["mountPath"] == "/calopd/data"
    nodes = {
        "gpu-8": ONE_NODE["several GPU nodes and a CPU node"],
        "gpu-multi": SEVERAL["tainted nodes and a CPU node"],
    }
    assert scheduling.pending([workload] if stopped else [*objects, workload], nodes[name]()) == []


def test_problems_need_a_file_and_a_claim(cluster: Cluster) -> None:
    for name in ("no-such.jsonl", str(cluster.root)):
        assert cluster.run("data", name, code=78) == []
        assert name in cluster.said
    cluster.answers("claim", "")
    assert not any(" apply " in call for call in cluster.run("data", __file__, code=78))
    assert "no claim for data" in cluster.said


def test_rendered_manifests_with_their_secrets_are_private(cluster: Cluster) -> None:
    shutil.copy(check.ROOT / "Makefile", cluster.root)
    public = cluster.root / "build/k8s/gpu-8.yaml"
    public.parent.mkdir(parents=True)
    public.write_text("of an earlier version")
    public.chmod(0o644)
    path = f"{cluster.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "CALLS": str(cluster.calls), "MAKEFLAGS": "", "MAKELEVEL": ""}
    subprocess.run(["make", "k8s-render"], cwd=cluster.root, env=environment, capture_output=True, check=True)
    files = {file.stem: file for file in public.parent.iterdir()}
    assert files.keys() == set(check.OVERLAYS)
    for name, file in files.items():
        assert file.read_text() == f"manifests of deploy/k8s/overlays/{name}\n"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_run_is_not_restored_under_a_learner_that_works(cluster: Cluster) -> None:
    answer_jobs(cluster, "gpu-8", stopped=True)
    assert cluster.run("restore", "no-such.tgz", code=78) == []
    assert "no-such.tgz" in cluster.said
    (cluster.root / "calls.learner/suspend").write_text("false")
    assert not any(" apply " in call for call in cluster.run("restore", packed(cluster.root), code=78))
    assert "cluster.sh stop" in cluster.said


@pytest.mark.parametrize("name", check.OVERLAYS)
def test_applying_again_resumes_a_stopped_run(name: str) -> None:
    (job,) = (o for o in rendered(name) if manifests.name_of(o) == "Job/learner")
    assert job["spec"]["suspend"] is False


@pytest.mark.parametrize("name", check.OVERLAYS)
def test_the_loss_of_another_pod_or_of_redis_is_no_failure_of_the_job(name: str) -> None:
    (job,) = (o for o in rendered(name) if manifests.name_of(o) == "Job/learner")
    rules = job["spec"]["podFailurePolicy"]["rules"]
    ignored = [rule["onExitCodes"]["values"] for rule in rules if rule["action"] == "Ignore" and "onExitCodes" in rule]
    assert ignored == [[RESTART_EXIT, TEMPORARY_EXIT, PEER_LOST_EXIT]]
