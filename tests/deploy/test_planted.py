"""An error of each class, planted into a copy of the project, is found by `make test-deploy`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy import check

PLANTED = {
    "wrong port name in a Service": (
        check.kubernetes,
        "deploy/k8s/base/teacher.yaml",
        "targetPort: grpc,",
        "targetPort: gprc,",
        "names a port 'gprc'",
    ),
    "wrong port name in a probe": (
        check.kubernetes,
        "deploy/k8s/base/rollout.yaml",
        "{path: /readyz, port: http}",
        "{path: /readyz, port: web}",
        "'web'",
    ),
    "a role that may write what it only reads": (
        check.kubernetes,
        "deploy/k8s/base/kustomization.yaml",
        "{name: policies, mountPath: /policies, readOnly: true}",
        "{name: policies, mountPath: /policies}",
        "may write to policies",
    ),
    "several nodes without network policies": (
        check.kubernetes,
        "deploy/k8s/overlays/gpu-multi/kustomization.yaml",
        "  - ../../components/network-policies\n",
        "",
        "spans several nodes without network policies",
    ),
    "missing secret": (
        check.kubernetes,
        "deploy/k8s/base/role.yaml",
        "{name: calopd, key: CALOPD_TOKEN}",
        "{name: tokens, key: CALOPD_TOKEN}",
        "no Secret/tokens",
    ),
    "missing claim": (
        check.kubernetes,
        "deploy/k8s/base/role.yaml",
        "{claimName: runs}",
        "{claimName: run}",
        "no PersistentVolumeClaim/run",
    ),
    "missing TOML": (
        check.kubernetes,
        "deploy/k8s/overlays/gpu-8/kustomization.yaml",
        "qwen3-4b-to-1.7b.toml",
        "qwen3-4b.toml",
        "has no qwen3-4b.toml",
    ),
    "selector of nobody": (
        check.kubernetes,
        "deploy/k8s/base/rollout.yaml",
        "  selector: {app.kubernetes.io/name: rollout}",
        "  selector: {app.kubernetes.io/name: rollouts}",
        "Service/rollout: its selector matches no pod",
    ),
    "request above its limit": (
        check.kubernetes,
        "deploy/k8s/base/learner.yaml",
        "memory: 1Gi}",
        "memory: 8Gi}",
        "more memory than its limit",
    ),
    "port out of range": (
        check.kubernetes,
        "deploy/k8s/base/learner.yaml",
        "containerPort: 8080",
        "containerPort: 80800",
        "out of range",
    ),
    "GPU sum 9": (
        check.kubernetes,
        "deploy/k8s/overlays/gpu-8/kustomization.yaml",
        "{name: teacher, count: 2}",
        "{name: teacher, count: 3}",
        "asks for 9 GPUs",
    ),
    "another split than the TOML's": (
        check.kubernetes,
        "configs/paper.toml",
        "rollout = 4",
        "rollout = 3",
        "4 rollouts with 1 GPUs each, [resources] says 3 with 1",
    ),
    "ranks without GPUs in a manifest": (
        check.kubernetes,
        "deploy/k8s/overlays/gpu-multi/kustomization.yaml",
        "--nproc-per-node=3",
        "--nproc-per-node=2",
        "2 ranks on 3 GPUs of a node",
    ),
    "replicas beside an autoscaler": (
        check.kubernetes,
        "deploy/k8s/overlays/gpu-multi/kustomization.yaml",
        "  - {name: rollout, count: 3}",
        "  - {name: rollout, count: 3}\n  - {name: teacher, count: 2}",
        "sets replicas, which an autoscaler owns",
    ),
    "operator that a plain cluster lacks": (
        check.kubernetes,
        "deploy/k8s/overlays/gpu-8/kustomization.yaml",
        "  - ../../components/one-node",
        "  - ../../components/one-node\n  - ../../components/monitoring",
        "needs the operator of monitoring.coreos.com/v1",
    ),
    "removed API": (
        check.kubernetes,
        "deploy/k8s/components/autoscaling/teacher.yaml",
        "autoscaling/v2",
        "autoscaling/v2beta2",
        "is served",
    ),
    "root": (
        check.kubernetes,
        "deploy/k8s/base/hardening.yaml",
        "runAsNonRoot: true",
        "runAsNonRoot: false",
        "as root",
    ),
    "unknown key in a manifest": (
        check.kubernetes_schema,
        "deploy/k8s/base/teacher.yaml",
        "clusterIP: None",
        "clusterIp: None",
        "clusterIp",
    ),
    "GPU taken twice": (
        check.compose_gpus,
        "docker-compose.override.yml",
        'device_ids: ["3"]',
        'device_ids: ["4"]',
        "reserves the GPUs",
    ),
    "ranks without GPUs": (
        check.compose_gpus,
        "docker-compose.override.yml",
        'PET_NPROC_PER_NODE: "2"',
        'PET_NPROC_PER_NODE: "4"',
        "4 ranks on 2 GPUs",
    ),
    "compose file of another configuration": (
        check.compose_gpus,
        "configs/paper.toml",
        "teacher = 2",
        "teacher = 1",
        "reserves the GPUs",
    ),
    "variable that nothing uses": (
        check.compose_variables,
        ".env.example",
        "REDIS_MEMORY=16g",
        "REDIS_MEMORY=16g\nLEARNER_RANKS=2",
        "sets LEARNER_RANKS",
    ),
    "tmpfs without exec": (check.compiler_caches, "deploy/docker/roles.yml", "/tmp:exec,", "/tmp:", "lacks exec"),
    "compiler cache outside of /tmp": (
        check.compiler_caches,
        "deploy/docker/Dockerfile",
        "TRITON_CACHE_DIR=/tmp/triton",
        "TRITON_CACHE_DIR=/models/triton",
        "TRITON_CACHE_DIR",
    ),
    "unknown key in a compose file": (
        check.compose_schema,
        "docker-compose.yml",
        "    stop_grace_period: 30s",
        "    stop_grace: 30s",
        "stop_grace",
    ),
    "unknown service to wait for": (
        check.compose_config,
        "docker-compose.yml",
        "prometheus: {condition: service_healthy}",
        "promotheus: {condition: service_healthy}",
        "promotheus",
    ),
    "unpinned package in an image": (
        check.dockerfile,
        "deploy/docker/Dockerfile",
        '"tini=0.19.*"',
        "tini",
        "DL3008",
    ),
    "alert that never fires": (
        check.rules,
        "deploy/monitoring/rules/calopd.yml",
        "calopd_learner_dead_letters > 0",
        "calopd_learner_dead_letters < 0",
        "DeadLetters",
    ),
    "typo in a metric name in a panel": (
        check.metric_names,
        "deploy/monitoring/grafana/dashboards/calibration.json",
        "calopd_learner_retained_discrepancy_ratio{",
        "calopd_learner_retained_discrepency_ratio{",
        "discrepency",
    ),
    "typo in a metric name in a rule": (
        check.metric_names,
        "deploy/monitoring/rules/calopd.yml",
        "calopd_teacher_canary_healthy",
        "calopd_teacher_canary_health",
        "calopd_teacher_canary_health",
    ),
    "unknown key in a panel": (
        check.dashboard_types,
        "deploy/monitoring/grafana/dashboards/pipeline.json",
        '"unit"',
        '"units"',
        "units",
    ),
    "panels over one another": (
        check.dashboard_layout,
        "deploy/monitoring/grafana/dashboards/pipeline.json",
        '"x": 16,',
        '"x": 15,',
        "lies over",
    ),
    "alert without a runbook": (check.runbook, "docs/runbook.md", "## Queue stalled", "## Queue", "QueueStalled"),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    for folder in ("deploy", "configs", "docs", "tests/deploy"):
        shutil.copytree(check.ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "secrets.env"))
    for file in (*check.COMPOSE_FILES, "docker-compose.cpu.yml", ".env.example"):
        shutil.copy(check.ROOT / file, root / file)
    return root


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_error_is_found(planted: str, copy: Path) -> None:
    looks, name, right, wrong, said = PLANTED[planted]
    file = copy / name
    text = file.read_text()
    assert right in text
    file.write_text(text.replace(right, wrong))
    try:
        found = _faults(looks, copy)
    finally:
        file.write_text(text)
    assert any(said in fault for fault in found), found


def _faults(looks: Callable[[Path], object], root: Path) -> list[str]:
    try:
        return list(looks(root))  # type: ignore[call-overload]
    except check.Skipped as reason:
        pytest.skip(str(reason))
    except check.Unrenderable as error:
        return [str(error)]
