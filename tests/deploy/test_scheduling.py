"""Every pod of every overlay gets a node, on the kinds of clusters that are common."""

from functools import cache

import pytest

from tests.deploy import check, scheduling
from tests.deploy.manifests import Object
from tests.deploy.scheduling import cpu_node, gpu_node

ONE_NODE = {
    "a tainted GPU node alone": lambda: [gpu_node("gpu")],
    "a tainted GPU node and a CPU node": lambda: [gpu_node("gpu"), cpu_node("cpu")],
    "an untainted GPU node and a larger CPU node": lambda: [gpu_node("gpu", tainted=False), cpu_node("cpu", 128, 2048)],
    "several GPU nodes and a CPU node": lambda: [
        gpu_node("a"),
        gpu_node("b"),
        cpu_node("cpu", 128, 2048),
        gpu_node("c"),
    ],
}
SEVERAL = {
    "tainted nodes": lambda: _several(tainted=True),
    "tainted nodes and a CPU node": lambda: [cpu_node("cpu"), *_several(tainted=True)],
    "untainted nodes and a CPU node": lambda: [*_several(tainted=False), cpu_node("cpu", 128, 2048)],
}
DEMO = {
    # kind's own pods ask for 950m.
    "what the system pods of two cores leave": lambda: [cpu_node("laptop", cores=2 - 0.95, gib=4)],
    "a tainted GPU node and a CPU node": lambda: [gpu_node("gpu"), cpu_node("cpu")],
    "several nodes": lambda: [cpu_node("a"), cpu_node("b"), cpu_node("c")],
}


def _several(*, tainted: bool) -> list[scheduling.Node]:
    roles = {"a": "teacher", "b": "student", "c": "student"}
    return [gpu_node(name, tainted=tainted, calopd__role=role) for name, role in roles.items()]


@cache
def rendered(overlay: str) -> list[Object]:
    try:
        return check.render(check.ROOT, overlay)
    except check.Skipped as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("overlay", ["gpu-8", "my-cluster.example"])
@pytest.mark.parametrize("cluster", ONE_NODE)
def test_on_one_of_the_nodes(cluster: str, overlay: str) -> None:
    nodes = ONE_NODE[cluster]()
    assert scheduling.pending(rendered(overlay), nodes) == []
    shared = [{pod["metadata"]["labels"].get("calopd.io/node") for pod in node.pods} for node in nodes]
    assert sum("shared" in labels for labels in shared) == 1


@pytest.mark.parametrize("cluster", SEVERAL)
def test_on_several_nodes(cluster: str) -> None:
    assert scheduling.pending(rendered("gpu-multi"), SEVERAL[cluster]()) == []


@pytest.mark.parametrize("cluster", DEMO)
def test_the_demo_without_gpus(cluster: str) -> None:
    assert scheduling.pending(rendered("cpu-demo"), DEMO[cluster]()) == []


def test_a_pod_without_a_node_is_reported() -> None:
    assert scheduling.pending(rendered("gpu-8"), [gpu_node("small", gpus=7)]) != []
    assert "StatefulSet/redis" in scheduling.pending(rendered("cpu-demo"), [gpu_node("tainted")])
    untolerated = scheduling.pending(rendered("gpu-multi"), [gpu_node("without-labels")])
    assert {"Deployment/teacher", "Deployment/rollout", "Job/learner"} <= set(untolerated)
