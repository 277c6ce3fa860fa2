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
from tests.deploy.scheduling import cpu_node
from tests.deploy.test_scheduling import ONE_NODE, SEVERAL

FOLDER = os.environ.get("K8S_BIN", "")
MISSING = control_plane.missing(FOLDER)
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"K8S_BIN={FOLDER!r} lacks {', '.join(MISSING)}")

CLUSTERS = {
    **{f"gpu-8 on {name}": ("gpu-8", nodes) for name, nodes in ONE_NODE.items()},
    **{f"my-cluster.example on {name}": ("my-cluster.example", nodes) for name, nodes in ONE_NODE.items()},
    **{f"gpu-multi on {name}": ("gpu-multi", nodes) for name, nodes in SEVERAL.items()},
    "cpu-demo on what two cores leave": ("cpu-demo", lambda: [cpu_node("laptop", cores=1.05, gib=4)]),
}


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


@pytest.mark.parametrize("case", CLUSTERS)
def test_every_pod_is_scheduled_and_applying_again_changes_nothing(case: str, cluster: Cluster, project: Path) -> None:
    overlay, nodes = CLUSTERS[case]
    for node in nodes():
        cluster.add_node(node)
    cluster.up(project / "deploy/k8s/overlays" / overlay)
    all_scheduled(cluster, {"cpu-demo": 4, "gpu-8": 9, "my-cluster.example": 9, "gpu-multi": 8}[overlay])
    before = cluster.pods()
    again = cluster.up(project / "deploy/k8s/overlays" / overlay)
    assert "replacing" not in again
    assert not re.search(r"\b(created|configured)$", again, re.MULTILINE), again
    assert cluster.pods() == before


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
