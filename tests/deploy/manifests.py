"""What validators of Kubernetes manifests do not see: `faults(objects)` of one rendered overlay, in words."""

from collections.abc import Iterator
from typing import Any

from calopd.config.placement import Placement

Object = dict[str, Any]

SERVED = {
    "v1", "apps/v1", "batch/v1", "policy/v1", "networking.k8s.io/v1", "autoscaling/v2", "scheduling.k8s.io/v1",
    "monitoring.coreos.com/v1", "cert-manager.io/v1",
}  # fmt: skip
"""Versions that no supported Kubernetes has removed."""
UNITS = {"m": 1e-3, "": 1.0, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 1e3, "M": 1e6, "G": 1e9}


def quantity(text: str | int) -> float:
    digits = str(text).rstrip("KMGTkmi")
    return float(digits) * UNITS[str(text)[len(digits) :]]


def name_of(thing: Object) -> str:
    return f"{thing['kind']}/{thing['metadata']['name']}"


def pods(objects: list[Object]) -> list[tuple[Object, Object]]:
    """Every workload with its pod template."""
    return [(o, o["spec"]["template"]) for o in objects if o["kind"] in ("Deployment", "StatefulSet", "Job")]


def matches(selector: Object, labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", [])
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(e["key"]) in e["values"] for e in expressions if e["operator"] == "In"
    )


def containers(pod: Object) -> list[Object]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def port_names(pod: Object) -> set[str]:
    return {port["name"] for container in containers(pod) for port in container.get("ports", [])}


def faults(objects: list[Object]) -> list[str]:
    found = [
        f"{name_of(o)}: {o['apiVersion']} is no API that is served" for o in objects if o["apiVersion"] not in SERVED
    ]
    spread = {thing["metadata"].get("namespace", "calopd") for thing in objects}
    found += [f"objects in the namespaces {sorted(spread)}"] if spread != {"calopd"} else []
    for check in (_selectors, _ports, _resources, _references, _security, _written_volumes, _rendezvous, _replicas):
        found += check(objects)
    return found


def _selectors(objects: list[Object]) -> Iterator[str]:
    labels = [pod["metadata"]["labels"] for _, pod in pods(objects)]
    # Labels that Kubernetes itself puts on the pods of an indexed Job.
    labels += [{**own, "batch.kubernetes.io/job-completion-index": "0"} for own in labels]
    for thing, pod in pods(objects):
        selector = thing["spec"].get("selector")
        if selector and not matches(selector, pod["metadata"]["labels"]):
            yield f"{name_of(thing)}: its selector does not match its own pods"
    for thing in objects:
        spec = thing.get("spec", {})
        key = "podSelector" if thing["kind"] == "NetworkPolicy" else "selector"
        if thing["kind"] not in ("Service", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor"):
            continue
        selector = {"matchLabels": spec[key]} if thing["kind"] == "Service" else spec[key]
        if not any(matches(selector, own) for own in labels) and name_of(thing) != "NetworkPolicy/prepare":
            yield f"{name_of(thing)}: its selector matches no pod"
    known = {name_of(o) for o in objects}
    for thing in objects:
        if thing["kind"] == "HorizontalPodAutoscaler":
            target = thing["spec"]["scaleTargetRef"]
            if f"{target['kind']}/{target['name']}" not in known:
                yield f"{name_of(thing)}: there is no {target['kind']}/{target['name']} to scale"


def _ports(objects: list[Object]) -> Iterator[str]:
    for thing, pod in pods(objects):
        names = [port["name"] for c in containers(pod) for port in c.get("ports", [])]
        if len(names) != len(set(names)):
            yield f"{name_of(thing)}: two ports of one name"
        for container in containers(pod):
            for port in container.get("ports", []):
                if not 1 <= port["containerPort"] <= 65_535 or len(port["name"]) > 15:
                    yield f"{name_of(thing)}: port {port['name']} = {port['containerPort']} is out of range"
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                used = container.get(probe, {}).get("httpGet", {}).get("port")
                if isinstance(used, str) and used not in names:
                    yield f"{name_of(thing)}: {probe} asks at the port {used!r}, which the container does not name"
                number = container.get(probe, {}).get("grpc", {}).get("port")
                if number and number not in [port["containerPort"] for port in container["ports"]]:
                    yield f"{name_of(thing)}: {probe} asks at {number}, which the container does not open"
    for thing in objects:
        spec = thing.get("spec", {})
        if thing["kind"] == "Service":
            selected, used = {"matchLabels": spec["selector"]}, [port["targetPort"] for port in spec["ports"]]
        elif thing["kind"] == "PodMonitor":
            selected, used = spec["selector"], [endpoint["port"] for endpoint in spec["podMetricsEndpoints"]]
            selected = {"matchLabels": {k: v for k, v in selected["matchLabels"].items() if not k.startswith("batch.")}}
        elif thing["kind"] == "NetworkPolicy":
            selected = spec["podSelector"]
            used = [p["port"] for rule in spec.get("ingress", []) for p in rule.get("ports", [])]
        else:
            continue
        named = {
            name for _, pod in pods(objects) if matches(selected, pod["metadata"]["labels"]) for name in port_names(pod)
        }
        yield from (
            f"{name_of(thing)}: no selected pod names a port {port!r}"
            for port in used
            if isinstance(port, str) and port not in named
        )


def _resources(objects: list[Object]) -> Iterator[str]:
    for thing, pod in pods(objects):
        for container in containers(pod):
            resources = container.get("resources", {})
            if "memory" not in resources.get("limits", {}) or "cpu" not in resources.get("requests", {}):
                yield f"{name_of(thing)}: {container['name']} has no memory limit or asks for no CPU"
            for kind, limit in resources.get("limits", {}).items():
                if quantity(resources.get("requests", {}).get(kind, 0)) > quantity(limit):
                    yield f"{name_of(thing)}: {container['name']} asks for more {kind} than its limit"


def _references(objects: list[Object]) -> Iterator[str]:
    known = {name_of(o): o for o in objects}
    # A certificate becomes a Secret when its issuer has signed it.
    known |= {f"Secret/{o['spec']['secretName']}": {} for o in objects if o["kind"] == "Certificate"}

    def wanted(thing: Object, pod: Object) -> Iterator[tuple[str, str | None]]:
        spec = pod["spec"]
        yield f"ServiceAccount/{spec.get('serviceAccountName')}", None
        if "priorityClassName" in spec:
            yield f"PriorityClass/{spec['priorityClassName']}", None
        own = {claim["metadata"]["name"] for claim in thing["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | own
        for volume in spec.get("volumes", []):
            if "persistentVolumeClaim" in volume:
                yield f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}", None
            if "secret" in volume:
                yield f"Secret/{volume['secret']['secretName']}", None
            if "configMap" in volume:
                for key in [item["key"] for item in volume["configMap"].get("items", [])] or [None]:
                    yield f"ConfigMap/{volume['configMap']['name']}", key
        for container in containers(pod):
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    yield f"volume {mount['name']}", None
            for source in container.get("envFrom", []):
                yield f"ConfigMap/{source['configMapRef']['name']}", None
            for variable in container.get("env", []):
                if key := variable.get("valueFrom", {}).get("secretKeyRef"):
                    yield f"Secret/{key['name']}", key["key"]

    for thing, pod in pods(objects):
        for reference, key in wanted(thing, pod):
            if reference not in known:
                yield f"{name_of(thing)}: there is no {reference}"
            elif key and known[reference] and key not in known[reference].get("data", {}):
                yield f"{name_of(thing)}: {reference} has no {key}"


def _security(objects: list[Object]) -> Iterator[str]:
    """Pod Security "restricted", and a root that cannot be written."""
    for thing, pod in pods(objects):
        spec = pod["spec"]
        context = spec.get("securityContext", {})
        if not context.get("runAsNonRoot") or context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{name_of(thing)}: may run as root or without seccomp"
        if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")) or any(
            "hostPath" in volume for volume in spec.get("volumes", [])
        ):
            yield f"{name_of(thing)}: reaches into its host"
        for container in containers(pod):
            own = container.get("securityContext", {})
            if (
                own.get("allowPrivilegeEscalation") is not False
                or own.get("capabilities", {}).get("drop") != ["ALL"]
                or not own.get("readOnlyRootFilesystem")
            ):
                yield f"{name_of(thing)}: {container['name']} is not restricted"


def _written_volumes(objects: list[Object]) -> Iterator[str]:
    """The learner alone may write runs and policies."""
    for thing, pod in pods(objects):
        if thing["metadata"]["name"] not in ("teacher", "rollout"):
            continue
        mounts = [mount for container in containers(pod) for mount in container.get("volumeMounts", [])]
        for mount in mounts:
            if mount["name"] in ("runs", "policies") and not mount.get("readOnly"):
                yield f"{name_of(thing)}: may write to {mount['name']}"


def _rendezvous(objects: list[Object]) -> Iterator[str]:
    """Whoever reaches the rendezvous of several nodes may take part: a policy must keep others away."""
    for thing, pod in pods(objects):
        arguments = [word for container in containers(pod) for word in container.get("args", [])]
        if any(word.startswith("--nnodes=") and word != "--nnodes=1" for word in arguments):
            policies = {name_of(o) for o in objects if o["kind"] == "NetworkPolicy"}
            if not {"NetworkPolicy/default-deny", f"NetworkPolicy/{thing['metadata']['name']}"} <= policies:
                yield f"{name_of(thing)}: spans several nodes without network policies"


def copies(thing: Object, objects: list[Object]) -> int:
    """Pods of a workload: replicas or completions, or the least number of the autoscaler that owns it."""
    scaler = _autoscaler(thing, objects)
    if scaler:
        return int(scaler["spec"]["minReplicas"])
    return int(thing["spec"].get("replicas", thing["spec"].get("completions", 1)))


def _autoscaler(thing: Object, objects: list[Object]) -> Object | None:
    for scaler in objects:
        if scaler["kind"] == "HorizontalPodAutoscaler":
            target = scaler["spec"]["scaleTargetRef"]
            if f"{target['kind']}/{target['name']}" == name_of(thing):
                return scaler
    return None


def _replicas(objects: list[Object]) -> Iterator[str]:
    """A number beside an autoscaler undoes its work whenever the manifests are applied."""
    for thing, _ in pods(objects):
        if _autoscaler(thing, objects) and "replicas" in thing["spec"]:
            yield f"{name_of(thing)}: sets replicas, which an autoscaler owns"


def gpus(objects: list[Object]) -> int:
    """GPUs that an overlay asks for, over all replicas."""
    total = 0
    for thing, pod in pods(objects):
        each = sum(int(c.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", 0)) for c in containers(pod))
        total += copies(thing, objects) * each
    return total


def chosen_config(objects: list[Object]) -> str:
    """The file of configs/ that the learner reads."""
    learner = _workload(objects, "learner")
    volumes = learner["spec"]["template"]["spec"]["volumes"]
    (items,) = (volume["configMap"]["items"] for volume in volumes if volume["name"] == "config")
    return str(next(item["key"] for item in items if item["path"] == "run.toml"))


def misplaced(objects: list[Object], placement: Placement) -> Iterator[str]:
    """Replicas, ranks and GPUs that differ from the [resources] of the configuration."""
    for role, groups in (("teacher", placement.teachers), ("rollout", placement.rollouts)):
        thing = _workload(objects, role)
        found = (copies(thing, objects), _gpus_of(thing))
        if found != (len(groups), len(groups[0])):
            yield f"{found[0]} {role}s with {found[1]} GPUs each, [resources] says {len(groups)} with {len(groups[0])}"
    learner = _workload(objects, "learner")
    args = learner["spec"]["template"]["spec"]["containers"][0]["args"]
    ranks = next(int(arg.partition("=")[2]) for arg in args if arg.startswith("--nproc-per-node="))
    if (ranks, _gpus_of(learner)) != (len(placement.learner), len(placement.learner)):
        yield f"{ranks} ranks on {_gpus_of(learner)} GPUs of a node, [resources] says {len(placement.learner)}"


def _workload(objects: list[Object], role: str) -> Object:
    return next(thing for thing, _ in pods(objects) if thing["metadata"]["name"] == role)


def _gpus_of(thing: Object) -> int:
    limits = thing["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    return int(limits.get("nvidia.com/gpu", 0))
