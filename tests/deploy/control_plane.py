"""A control plane of Kubernetes on loopback, with nodes that exist only as objects."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.deploy import check
from tests.deploy.scheduling import Node
from tests.ports import free_port

BINARIES = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
TOKEN = "test-token"
STUBS = {
    "monitoring.coreos.com": {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"},
    "cert-manager.io": {"Issuer": "issuers", "Certificate": "certificates"},
}
"""Kinds of operators, without their schemas."""


def missing(folder: str) -> list[str]:
    """The binaries that are not in a folder, and kubectl if it is not installed."""
    absent = [name for name in BINARIES if not folder or not os.access(Path(folder) / name, os.X_OK)]
    return absent if shutil.which("kubectl") else [*absent, "kubectl"]


def wait(what: str, until: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, what
        time.sleep(0.3)


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        cluster = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }  # fmt: skip
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(config))

    def run(self, *command: str, text: str | None = None) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        return subprocess.run(command, input=text, capture_output=True, text=True, env=environment)

    def kubectl(self, *words: str, text: str | None = None) -> str:
        done = self.run("kubectl", *words, text=text)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def items(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", *words, "-o", "json"))["items"]
        return found

    def add_node(self, node: Node) -> None:
        metadata = {"name": node.name, "labels": {**node.labels, "kubernetes.io/hostname": node.name}}
        self.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        taints = [{"key": key, "value": "present", "effect": "NoSchedule"} for key in node.taints]
        room = {
            "cpu": str(node.room["cpu"]), "memory": str(int(node.room["memory"])), "pods": "110",
            "ephemeral-storage": "4Ti",
        }  # fmt: skip
        if gpus := node.room["nvidia.com/gpu"]:
            room["nvidia.com/gpu"] = str(int(gpus))
        ready = [{"type": "Ready", "status": "True", "reason": "Test", "message": "", "lastHeartbeatTime": None}]
        status = {"status": {"capacity": room, "allocatable": room, "conditions": ready}}
        self.kubectl("patch", "node", node.name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
        self.kubectl("patch", "node", node.name, "--type=merge", "-p", json.dumps({"spec": {"taints": taints}}))

    def add_stubs(self) -> None:
        """Add kinds of operators, and volumes for every claim."""
        anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        version = {"name": "v1", "served": True, "storage": True, "schema": anything}
        for group, kinds in STUBS.items():
            for kind, plural in kinds.items():
                names = {"kind": kind, "plural": plural, "singular": kind.lower()}
                spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [version]}
                metadata = {"name": f"{plural}.{group}"}
                crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
                self.apply({**crd, "metadata": metadata, "spec": spec})
                self.kubectl("wait", "--for=condition=Established", f"crd/{plural}.{group}", "--timeout=60s")
        default = {"storageclass.kubernetes.io/is-default-class": "true"}
        self.apply({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "kubernetes.io/no-provisioner",
            "metadata": {"name": "test", "annotations": default}, "volumeBindingMode": "WaitForFirstConsumer",
        })  # fmt: skip
        modes = ["ReadWriteOnce", "ReadWriteMany"]
        for number in range(6):
            spec = {"capacity": {"storage": "4Ti"}, "accessModes": modes, "storageClassName": "test"}
            volume = {**spec, "hostPath": {"path": f"/none/{number}"}, "persistentVolumeReclaimPolicy": "Retain"}
            self.apply(
                {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"v{number}"}, "spec": volume}
            )

    def pods(self) -> dict[str, str]:
        """Name -> node, of the pods that are not being deleted."""
        return {
            pod["metadata"]["name"]: pod["spec"].get("nodeName", "")
            for pod in self.items("pods", "-n", "calopd")
            if "deletionTimestamp" not in pod["metadata"]
        }

    def up(self, overlay: Path) -> str:
        done = self.run(str(overlay.parents[1] / "cluster.sh"), "up", str(overlay))
        assert done.returncode == 0, done.stderr[-3000:]
        assert "Warning" not in done.stderr, done.stderr
        return done.stdout


@contextlib.contextmanager
def started(folder: Path, binaries: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    check.run(["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"], folder)
    (folder / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    peer, client = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    config = f"--kubeconfig={cluster.kubeconfig}"
    commands = (
        ["etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
         f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"],
        ["kube-apiserver", f"--etcd-servers={client}", f"--cert-dir={folder / 'certs'}",
         f"--secure-port={cluster.port}", "--bind-address=127.0.0.1",
         "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24",
         f"--token-auth-file={folder / 'tokens.csv'}", "--authorization-mode=RBAC",
         "--service-account-issuer=https://test", f"--service-account-key-file={folder / 'sa.key'}",
         f"--service-account-signing-key-file={folder / 'sa.key'}"],
        ["kube-scheduler", config, "--leader-elect=false", "--secure-port=0"],
        ["kube-controller-manager", config, "--leader-elect=false", "--secure-port=0",
         f"--service-account-private-key-file={folder / 'sa.key'}", "--controllers=*,-node-lifecycle-controller"],
    )  # fmt: skip
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.log").open("wb") as log:
                arguments = [str(binaries / command[0]), *command[1:]]
                processes.append(subprocess.Popen(arguments, stdout=log, stderr=log, cwd=folder))
            if command[0] == "kube-apiserver":
                wait(
                    "the API server is not ready", lambda: not cluster.run("kubectl", "get", "--raw=/readyz").returncode
                )
        yield cluster
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(60)
