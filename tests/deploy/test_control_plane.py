"""`make test-k8s K8S_BIN=DIR`: the overlays on a real API server, scheduler and controller manager, with fake nodes.

No kubelet runs, so that no container starts: this shows what Kubernetes accepts, where it puts the pods, and what the
commands of docs/deploy.md change.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import check, control_plane
from tests.deploy.control_plane import Cluster, wait
from tests.deploy.test_scheduling import DEMO, ONE_NODE, SEVERAL

FOLDER = os.environ.get("K8S_BIN", "")
MISSING = control_plane.missing(FOLDER)
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not found: {', '.join(MISSING)}; K8S_BIN={FOLDER!r}")

CLUSTERS = {
    **{f"gpu-8 on {name}": ("gpu-8", nodes) for name, nodes in ONE_NODE.items()},
    **{f"my-cluster.example on {name}": ("my-cluster.example", nodes) for name, nodes in ONE_NODE.items()},
    **{f"gpu-multi on {name}": ("gpu-multi", nodes) for name, nodes in SEVERAL.items()},
    **{f"cpu-demo on {name}": ("cpu-demo", nodes) for name, nodes in DEMO.items()},
}
PODS = {"cpu-demo": 4, "gpu-8": 9, "my-cluster.example": 9, "gpu-multi": 9}
"""With the two teachers that the autoscaler of gpu-multi keeps at least."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy whose overlays may be changed."""
    for name in ("deploy", "configs"):
        shutil.copytree(check.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("secrets.env"))
    return tmp_path


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with control_plane.started(tmp_path_factory.mktemp("cluster"), Path(FOLDER).absolute()) as cluster:
        cluster.add_stubs()
        yield cluster


def all_scheduled(cluster: Cluster, count: int) -> None:
    def ready() -> bool:
        pods = cluster.pods()
        return len(pods) == count and all(pods.values())

    try:
        wait("", ready)
    except AssertionError:
        events = cluster.kubectl("get", "events", "-n", "calopd", "--field-selector=type=Warning")
        raise AssertionError(f"{count} pods expected, found {cluster.pods()}\n{events[-3000:]}") from None


def applying_again_changes_nothing(cluster: Cluster, overlay: Path) -> None:
    before, again = cluster.pods(), cluster.up(overlay)
    assert "replacing" not in again
    assert not re.search(r"\b(created|configured)$", again, re.MULTILINE), again
    assert cluster.pods() == before


@pytest.mark.parametrize("case", CLUSTERS)
def test_every_pod_is_scheduled_and_applying_again_changes_nothing(case: str, cluster: Cluster, project: Path) -> None:
    overlay, nodes = CLUSTERS[case]
    for node in nodes():
        cluster.add_node(node)
    cluster.up(project / "deploy/k8s/overlays" / overlay)
    all_scheduled(cluster, PODS[overlay])
    applying_again_changes_nothing(cluster, project / "deploy/k8s/overlays" / overlay)


def test_applying_again_keeps_the_teachers_of_the_autoscaler(cluster: Cluster, project: Path) -> None:
    for node in SEVERAL["tainted nodes"]():
        cluster.add_node(node)
    overlay = project / "deploy/k8s/overlays/gpu-multi"
    cluster.up(overlay)
    all_scheduled(cluster, PODS["gpu-multi"])
    # In its place: without an adapter it has no metric to act on.
    cluster.kubectl("-n", "calopd", "scale", "deployment", "teacher", "--replicas=3")
    all_scheduled(cluster, PODS["gpu-multi"] + 1)
    applying_again_changes_nothing(cluster, overlay)
    assert cluster.kubectl("-n", "calopd", "get", "deployment", "teacher", "-o", "jsonpath={.spec.replicas}") == "3"


def test_an_overlay_with_monitoring(cluster: Cluster, project: Path) -> None:
    for node in ONE_NODE["a tainted GPU node and a CPU node"]():
        cluster.add_node(node)
    overlay = project / "deploy/k8s/overlays/my-cluster.example"
    file = overlay / "kustomization.yaml"
    file.write_text(file.read_text().replace("\n#components:", "\ncomponents:"))
    cluster.up(overlay)
    all_scheduled(cluster, PODS["my-cluster.example"])
    for kind in ("podmonitors", "prometheusrules"):
        assert cluster.items(kind, "-n", "calopd") != []
    applying_again_changes_nothing(cluster, overlay)


def test_a_new_run_an_upgrade_and_a_stop(cluster: Cluster, project: Path) -> None:
    cluster.add_node(ONE_NODE["a tainted GPU node alone"]()[0])
    overlay = project / "deploy/k8s/overlays/gpu-8"
    cluster.up(overlay)
    all_scheduled(cluster, 9)
    jobs = {job["metadata"]["name"]: job["metadata"]["uid"] for job in cluster.items("jobs", "-n", "calopd")}

    def changed() -> bool:
        found = {job["metadata"]["name"]: job["metadata"]["uid"] for job in cluster.items("jobs", "-n", "calopd")}
        return found.keys() == jobs.keys() and not found.items() & jobs.items()

    for file, old, new in (
        (project / "configs/qwen3-4b-to-1.7b.toml", 'name = "', 'name = "another-'),
        (overlay / "kustomization.yaml", "newTag: local", "newTag: v2"),
    ):
        file.write_text(file.read_text().replace(old, new))
        assert cluster.up(overlay).count("replacing it") == 2
        assert "replacing" not in cluster.up(overlay)
        assert changed()
        jobs = {job["metadata"]["name"]: job["metadata"]["uid"] for job in cluster.items("jobs", "-n", "calopd")}
    all_scheduled(cluster, 9)

    claims = cluster.kubectl("get", "pvc", "-n", "calopd", "-o", "name")
    done = cluster.run(str(project / "deploy/k8s/cluster.sh"), "stop")
    assert done.returncode == 0, done.stderr
    wait("only Redis and the download stay", lambda: len(cluster.pods()) == 2)
    assert cluster.kubectl("get", "pvc", "-n", "calopd", "-o", "name") == claims
    cluster.up(overlay)
    all_scheduled(cluster, 9)
