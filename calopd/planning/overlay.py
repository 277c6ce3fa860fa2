"""An overlay of Kubernetes manifests for one cluster: pair, registry, storage, GPUs, price of the nodes."""

import os
from collections.abc import Iterable
from pathlib import Path

from calopd.config import Config
from calopd.config.placement import Placement
from calopd.core.errors import ConfigError
from calopd.rundir.files import write_text

BASE = Path("deploy/k8s/overlays/gpu-8")
KUSTOMIZATION, OWN = "kustomization.yaml", "run.toml"

HEAD = """\
# {title}
# Edit it, then: deploy/k8s/cluster.sh up {name}
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: calopd
resources: [{base}]
# With the Prometheus operator in the cluster: pod monitors, alerts and dashboards.
#components: [{components}/monitoring]
# The registry and the tag that the images were pushed with.
images:
  - {{name: calopd/teacher, newName: registry.example.com/calopd/teacher, newTag: local}}
  - {{name: calopd/rollout, newName: registry.example.com/calopd/rollout, newTag: local}}
  - {{name: calopd/learner, newName: registry.example.com/calopd/learner, newTag: local}}
  #- {{name: redis, newName: registry.example.com/redis, newTag: 7.2-bookworm}}
# The split of the GPUs, as [resources] of the TOML says.
# With ../gpu-multi leave teacher out of replicas: its autoscaler sets them.
replicas:
  - {{name: teacher, count: {teachers}}}
  - {{name: rollout, count: {rollouts}}}
"""
OWN_FILE = """\
configMapGenerator:
  - {name: configs, behavior: merge, files: [run.toml]}
"""
PATCHES = """\
patches:
  # The pair: a file of configs/. For one of your own, add run.toml to this folder, its name here, and above:
  # configMapGenerator: [{{name: configs, behavior: merge, files: [run.toml]}}]
  - target: {{kind: (Deployment|Job), name: (teacher|rollout|learner|prepare)}}
    patch: |-
      - {{op: replace, path: /spec/template/spec/volumes/0/configMap/items/0/key, value: {key}}}
"""
GPUS = """\
  - target: {{kind: (Deployment|Job), name: {role}}}
    patch: |-
      - {{op: replace, path: /spec/template/spec/containers/0/resources/requests/nvidia.com~1gpu, value: {count}}}
      - {{op: replace, path: /spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu, value: {count}}}
"""
RANKS = """\
      - {{op: replace, path: /spec/template/spec/containers/0/args/1, value: --nproc-per-node={count}}}
"""
OPTIONS = """\
  # A storage class other than the cluster's default.
  #- target: {kind: PersistentVolumeClaim}
  #  patch: |-
  #    - {op: add, path: /spec/storageClassName, value: fast}
  #- target: {kind: StatefulSet, name: redis}
  #  patch: |-
  #    - {op: add, path: /spec/volumeClaimTemplates/0/spec/storageClassName, value: fast}
  # Cheaper nodes that may be taken away at any time, by their label and taint: the run resumes after a loss.
  # Redis needs a node without this taint. With ../gpu-multi leave prepare out, and keep the roles' node selectors:
  # {op: add, path: /spec/template/spec/nodeSelector/karpenter.sh~1capacity-type, value: spot}
  #- target: {kind: (Deployment|Job), name: (teacher|rollout|learner|prepare)}
  #  patch: |-
  #    - {op: add, path: /spec/template/spec/nodeSelector, value: {karpenter.sh/capacity-type: spot}}
  #    - {op: add, path: /spec/template/spec/tolerations/-, value: {key: spot, operator: Exists}}
  # A priority class of the cluster instead of calopd-training.
  #- target: {kind: (Deployment|Job), name: (teacher|rollout|learner)}
  #  patch: |-
  #    - {op: replace, path: /spec/template/spec/priorityClassName, value: low}
"""


def render_overlay(placement: Placement, *, title: str, name: str, base: str, key: str, own_file: bool = False) -> str:
    """The kustomization.yaml of a split; `key` is the TOML, one of configs/ or the overlay's own file."""
    if not (placement.teachers and placement.rollouts and placement.learner):
        raise ConfigError("set resources.teacher, resources.rollout and resources.learner to GPUs of a node")
    gpus = {"teacher": len(placement.teachers[0]), "rollout": len(placement.rollouts[0])}
    ranks = len(placement.learner)
    teachers, rollouts = len(placement.teachers), len(placement.rollouts)
    components = os.path.normpath(f"{base}/../../components")
    parts: Iterable[str] = (
        HEAD.format(title=title, name=name, base=base, components=components, teachers=teachers, rollouts=rollouts),
        OWN_FILE if own_file else "",
        PATCHES.format(key=key),
        "  # GPUs of one teacher and of one rollout; GPUs and ranks of the learner.\n",
        *(GPUS.format(role=role, count=count) for role, count in gpus.items()),
        GPUS.format(role="learner", count=ranks) + RANKS.format(count=ranks),
        OPTIONS,
    )
    return "".join(parts)


def refuse_existing(folder: Path) -> None:
    """Refuse a folder with an overlay: its owner may have edited it."""
    for name in (KUSTOMIZATION, OWN):
        if (folder / name).exists():
            raise ConfigError(f"--overlay {folder} has a {name} already: choose another folder, or remove it")


def write_overlay(folder: Path, config: Config, title: str) -> None:
    """Write an overlay and the TOML that it runs."""
    if not BASE.is_dir():
        raise ConfigError(f"there is no {BASE}: run this in the folder of the project")
    base = os.path.relpath(BASE, folder)
    text = render_overlay(config.placement, title=title, name=str(folder), base=base, key=OWN, own_file=True)
    write_text(folder / OWN, config.to_toml())
    write_text(folder / KUSTOMIZATION, text)
