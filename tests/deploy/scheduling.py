"""Where a scheduler would put the pods of an overlay, by the rules that the manifests use.

Taints and tolerations, node selectors, requests (CPU, memory, GPUs), required affinity and anti-affinity to pods by
host name, the access mode of claims. Preferences are ignored, and of the nodes that fit the emptiest one is taken, as
the default scheduler does.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.deploy.manifests import Object, copies, matches, name_of, pods, quantity

RESOURCES = ("cpu", "memory", "nvidia.com/gpu")


@dataclass
class Node:
    name: str
    room: dict[str, float]
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    pods: list[Object] = field(default_factory=list)


def gpu_node(name: str, gpus: int = 8, *, tainted: bool = True, **labels: str) -> Node:
    room = {"cpu": 64.0, "memory": 1024.0 * 2**30, "nvidia.com/gpu": float(gpus)}
    return Node(name, room, {key.replace("__", ".io/"): v for key, v in labels.items()}, ("nvidia.com/gpu",) * tainted)


def cpu_node(name: str, cores: float = 16, gib: float = 64) -> Node:
    return Node(name, {"cpu": cores, "memory": gib * 2**30, "nvidia.com/gpu": 0.0})


def pending(objects: list[Object], nodes: list[Node]) -> list[str]:
    """The pods that never get a node. Those that wait for another pod are tried again as long as one is placed."""
    waiting = [(name_of(thing), pod) for thing, pod in pods(objects) for _ in range(copies(thing, objects))]
    placed = True
    while placed:
        placed = False
        for name, pod in list(waiting):
            fitting = [node for node in nodes if _fits(pod, node, nodes)]
            if fitting:
                # The emptiest one; of equal ones the last, so that Redis does not land beside the others by chance.
                node = max(reversed(fitting), key=lambda node: (node.room["cpu"], -len(node.pods)))
                node.pods.append(pod)
                node.room = {kind: node.room[kind] - amount for kind, amount in _requests(pod).items()}
                waiting.remove((name, pod))
                placed = True
    return sorted(name for name, _ in waiting) + _torn(objects, nodes)


def _requests(pod: Object) -> dict[str, float]:
    """An init container runs before the others: the larger of the two counts."""

    def asked(entries: Iterable[Object], kind: str) -> list[float]:
        return [quantity(entry.get("resources", {}).get("requests", {}).get(kind, 0)) for entry in entries]

    spec = pod["spec"]
    return {
        kind: max(sum(asked(spec["containers"], kind)), *asked(spec.get("initContainers", []), kind), 0.0)
        for kind in RESOURCES
    }


def _fits(pod: Object, node: Node, nodes: list[Node]) -> bool:
    spec = pod["spec"]
    return (
        all(_tolerates(spec.get("tolerations", []), taint) for taint in node.taints)
        and spec.get("nodeSelector", {}).items() <= node.labels.items()
        and all(node.room[kind] >= amount for kind, amount in _requests(pod).items())
        and all(_near(pod, term, node, nodes) for term in _terms(pod, "podAffinity"))
        and not any(_selected(term, other) for term in _terms(pod, "podAntiAffinity") for other in node.pods)
    )


def _tolerates(tolerations: list[dict[str, Any]], taint: str) -> bool:
    return any(t.get("key", taint) == taint and t.get("operator") == "Exists" for t in tolerations)


def _terms(pod: Object, kind: str) -> list[Object]:
    affinity = pod["spec"].get("affinity", {}).get(kind, {})
    return list(affinity.get("requiredDuringSchedulingIgnoredDuringExecution", []))


def _selected(term: Object, pod: Object) -> bool:
    assert term["topologyKey"] == "kubernetes.io/hostname"
    return matches(term["labelSelector"], pod["metadata"]["labels"])


def _near(pod: Object, term: Object, node: Node, nodes: list[Node]) -> bool:
    """A pod that the term selects is on the node; the first of all may choose, if the term selects itself."""
    if any(_selected(term, other) for other in node.pods):
        return True
    return _selected(term, pod) and not any(_selected(term, other) for each in nodes for other in each.pods)


def _torn(objects: list[Object], nodes: list[Node]) -> list[str]:
    """Claims of one node that pods of several nodes mount."""
    single = {
        o["metadata"]["name"]
        for o in objects
        if o["kind"] == "PersistentVolumeClaim" and o["spec"]["accessModes"] == ["ReadWriteOnce"]
    }
    users: dict[str, set[str]] = {claim: set() for claim in single}
    for node in nodes:
        for pod in node.pods:
            for volume in pod["spec"].get("volumes", []):
                claim = volume.get("persistentVolumeClaim", {}).get("claimName")
                if claim in single:
                    users[claim].add(node.name)
    return [f"claim {claim} on {sorted(names)}" for claim, names in sorted(users.items()) if len(names) > 1]


def total(objects: list[Object], kind: str) -> float:
    """What all pods of an overlay ask for together."""
    return sum(_requests(pod)[kind] * copies(thing, objects) for thing, pod in pods(objects))
