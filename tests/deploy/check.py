"""`make test-deploy`: what of images, compose, Kubernetes and monitoring can be checked without running it.

    python -m tests.deploy.check [ROOT]

A check whose tool is not on this machine is skipped and says so.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from calopd.config import load_config
from tests.deploy import manifests, promql

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "build" / "deploy"
OVERLAYS = ("cpu-demo", "gpu-8", "gpu-multi", "my-cluster.example")
KUBERNETES = ("1.31", "1.37")
OPERATORS = {"monitoring.coreos.com/v1", "cert-manager.io/v1"}
"""Kinds of operators: no validator here knows their schemas."""
NEEDED = {"gpu-multi": {"cert-manager.io/v1"}}
"""Operators that docs/deploy.md requires; any other would make `kubectl apply` fail on a plain cluster."""
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "VLLM_CACHE_ROOT")
COMPOSE_FILES = ("docker-compose.yml", "docker-compose.override.yml")
"""Files that `docker compose` reads if no other is named."""
SET_BY_MAKE = {"CALOPD_VERSION", "REVISION", "TORCH_INDEX", "PIP_EXTRA_INDEX_URL", "DEMO_CONFIG"}
READ_BY_OTHERS = {"CONFIG", "PIP_CONF", "CA_BUNDLE", "BUILD_FLAGS", "COMPOSE_PROJECT_NAME", "COMPOSE_FILE"}
"""By make, by deploy/docker/build.sh and by compose itself."""
SECRETS = {"CALOPD_TOKEN": "token", "REDIS_PASSWORD": "password", "GRAFANA_PASSWORD": "password"}


class Skipped(Exception):
    """A tool is not there."""


class Unrenderable(Exception):
    """kustomize cannot make manifests of an overlay."""


def tool(name: str) -> str:
    places = [str(TOOLS / "venv" / "bin"), str(TOOLS / "node" / "node_modules" / ".bin"), os.environ["PATH"]]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        raise Skipped(f"{name} is not installed")
    return found


def run(command: list[str], cwd: Path, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environment}
    )
    return done.returncode, done.stdout.strip()


def dockerfile(root: Path) -> Iterator[str]:
    code, said = run([tool("hadolint"), "deploy/docker/Dockerfile"], root)
    if code:
        yield said


def compose_schema(root: Path) -> Iterator[str]:
    files = [*COMPOSE_FILES, "docker-compose.cpu.yml", "deploy/docker/roles.yml"]
    code, said = run([tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", *files], root)
    if code:
        yield said


def compose_command() -> list[str]:
    if shutil.which("docker") and not run(["docker", "compose", "version"], ROOT)[0]:
        return ["docker", "compose"]
    return [tool("docker-compose")]


STACKS = ("docker-compose.yml:docker-compose.override.yml", "docker-compose.yml:docker-compose.cpu.yml")
"""Values of COMPOSE_FILE: on GPUs, without."""


def compose_config(root: Path) -> Iterator[str]:
    """Both stacks load, and neither does without its secrets."""
    command = compose_command()
    for files in STACKS:
        code, said = run([*command, "config", "-q"], root, COMPOSE_FILE=files, **SECRETS)
        if code:
            yield f"{files}: {said}"
        code, _ = run([*command, "config", "-q"], root, COMPOSE_FILE=files, **dict.fromkeys(SECRETS, ""))
        if not code:
            yield f"{files} loads although its secrets are not set"


def compose_gpus(root: Path) -> Iterator[str]:
    """The GPU roles are placed as [resources] of their configuration says, and no GPU is reserved by two of them."""
    services = yaml.safe_load((root / "docker-compose.override.yml").read_text())["services"]
    mounted = services["learner"]["volumes"][0].removesuffix(":/etc/calopd/run.toml:ro")
    placement = load_config(root / mounted, environ={}).placement
    placed = {f"teacher-{number}": group for number, group in enumerate(placement.teachers)}
    placed |= {f"rollout-{number}": group for number, group in enumerate(placement.rollouts)}
    placed["learner"] = placement.learner
    reserved = {name: devices for name, service in services.items() if (devices := _reserved(service))}
    if reserved != placed:
        yield f"docker-compose.override.yml reserves the GPUs {reserved}, [resources] of {mounted} says {placed}"
    times = Counter(gpu for group in placed.values() for gpu in group)
    yield from (f"{mounted} places two processes on GPU {gpu}" for gpu, count in times.items() if count > 1)
    ranks = services["learner"]["environment"]["PET_NPROC_PER_NODE"]
    if ranks != str(len(placement.learner)):
        yield f"the learner has {ranks} ranks on {len(placement.learner)} GPUs"


def _reserved(service: dict[str, Any]) -> tuple[int, ...]:
    entries = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
    return tuple(int(device) for entry in entries for device in entry["device_ids"])


def compose_variables(root: Path) -> Iterator[str]:
    """.env.example explains every variable of the compose files, and no other."""
    texts = [
        (root / file).read_text() for file in (*COMPOSE_FILES, "docker-compose.cpu.yml", "deploy/docker/roles.yml")
    ]
    used = {name for text in texts for name in re.findall(r"\$\{(\w+)", text)} - SET_BY_MAKE
    example = (root / ".env.example").read_text()
    explained = set(re.findall(r"\b[A-Z][A-Z_]{3,}\b", example))
    yield from (f".env.example does not explain {name}" for name in sorted(used - explained))
    given = set(re.findall(r"^([A-Z_]+)=", example, re.MULTILINE)) - READ_BY_OTHERS
    yield from (f".env.example sets {name}, which no compose file uses" for name in sorted(given - used))


def compiler_caches(root: Path) -> Iterator[str]:
    """Triton, Inductor and FlashInfer load what they compile: their folders are in a /tmp that is mounted with exec."""
    for name, service in yaml.safe_load((root / "deploy/docker/roles.yml").read_text())["services"].items():
        mounts = dict(mount.split(":", 1) for mount in service.get("tmpfs", []))
        if "exec" not in mounts.get("/tmp", "").split(","):
            yield f"roles.yml: {name} cannot load libraries from /tmp: {mounts} lacks exec"
    text = (root / "deploy/docker/Dockerfile").read_text()
    settings = dict(re.findall(r"^(?:ENV)? +(\w+)=(\S+)", text, re.MULTILINE))
    for variable in CACHES:
        if not settings.get(variable, "").startswith("/tmp/"):
            yield f"Dockerfile: {variable} is not a folder in /tmp, the only place that can be written"


def render(root: Path, overlay: str) -> list[manifests.Object]:
    kubectl = tool("kubectl")
    # In a copy, so that secrets of this clone are neither needed nor shown.
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(root / "deploy", copy / "deploy")
        shutil.copytree(root / "configs", copy / "configs")
        secrets = copy / "deploy" / "k8s" / "secrets"
        shutil.copy(secrets / "secrets.env.example", secrets / "secrets.env")
        code, said = run([kubectl, "kustomize", f"deploy/k8s/overlays/{overlay}"], copy)
    if code:
        raise Unrenderable(said)
    return [thing for thing in yaml.safe_load_all(said) if thing]


def kubernetes(root: Path) -> Iterator[str]:
    for overlay in OVERLAYS:
        objects = render(root, overlay)
        yield from (f"{overlay}: {fault}" for fault in manifests.faults(objects))
        unwanted = {o["apiVersion"] for o in objects} & OPERATORS - NEEDED.get(overlay, set())
        yield from (f"{overlay}: needs the operator of {version}" for version in sorted(unwanted))
        if overlay == "gpu-8" and manifests.gpus(objects) != 8:
            yield f"gpu-8 asks for {manifests.gpus(objects)} GPUs"
        chosen = root / "configs" / manifests.chosen_config(objects)
        if overlay != "cpu-demo" and chosen.is_file():
            placement = load_config(chosen, environ={}).placement
            yield from (f"{overlay}: {fault}" for fault in manifests.misplaced(objects, placement))


def kubernetes_schema(root: Path) -> Iterator[str]:
    """Strict, and what the validator only warns of is an error too."""
    validate = tool("kubernetes-validate")
    for overlay in OVERLAYS:
        known = [thing for thing in render(root, overlay) if thing["apiVersion"] not in OPERATORS]
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump_all(known, file)
            file.flush()
            for version in KUBERNETES:
                _, said = run([validate, "--strict", "-k", version, file.name], root)
                lines = [line.replace(file.name, overlay) for line in said.splitlines() if not line.startswith("INFO")]
                yield from (f"Kubernetes {version}: {line}" for line in lines)


def rules(root: Path) -> Iterator[str]:
    promtool = tool("promtool")
    monitoring = root / "deploy" / "monitoring"
    for command in (
        [promtool, "check", "rules", str(monitoring / "rules" / "calopd.yml")],
        [promtool, "check", "config", "--syntax-only", str(monitoring / "prometheus.yml")],
        [promtool, "test", "rules", "tests/deploy/rules.test.yml"],
    ):
        code, said = run(command, root)
        if code:
            yield said


def pages(root: Path) -> dict[str, dict[str, Any]]:
    folder = root / "deploy" / "monitoring" / "grafana" / "dashboards"
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def alert_rules(root: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((root / "deploy" / "monitoring" / "rules" / "calopd.yml").read_text())
    return loaded


def dashboard_types(root: Path) -> Iterator[str]:
    tsc = tool("tsc")
    folder = TOOLS / "node"
    shutil.copy(root / "tests" / "deploy" / "grafana" / "dashboard.ts", folder)
    for name, page in pages(root).items():
        text = f"import type {{ Page }} from './dashboard';\nexport const page: Page = {json.dumps(page, indent=1)};\n"
        (folder / f"{name}.ts").write_text(text)
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "node"]
    code, said = run([tsc, *options, *(f"{name}.ts" for name in pages(root))], folder)
    if code:
        yield said


def dashboard_layout(root: Path) -> Iterator[str]:
    """Ids are unique, panels do not overlap and stay on the page."""
    uids = Counter(page["uid"] for page in pages(root).values())
    yield from (f"two dashboards have the uid {uid}" for uid, count in uids.items() if count > 1)
    for name, page in pages(root).items():
        ids = Counter(panel["id"] for panel in page["panels"])
        yield from (f"{name}: two panels have the id {number}" for number, count in ids.items() if count > 1)
        taken: dict[tuple[int, int], str] = {}
        for panel in page["panels"]:
            at = panel["gridPos"]
            cells = itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
            hit = {taken.setdefault(cell, panel["title"]) for cell in cells} - {panel["title"]}
            yield from (f"{name}: {panel['title']} lies over {other}" for other in sorted(hit))
            if at["x"] + at["w"] > 24:
                yield f"{name}: {panel['title']} is wider than the page"


def metric_names(root: Path) -> Iterator[str]:
    """What panels and rules ask for is what the services export."""
    recorded = promql.records(alert_rules(root))
    known = promql.exported() | recorded
    asked = promql.rule_expressions(alert_rules(root))
    for name, page in pages(root).items():
        asked |= {f"{name}, {where}": expression for where, expression in promql.panel_expressions(page).items()}
    for where, expression in asked.items():
        for unknown in sorted(promql.names_in(expression) - known):
            yield f"{where}: nobody exports {unknown}"


def runbook(root: Path) -> Iterator[str]:
    anchors = promql.runbook_anchors(root)
    for group in alert_rules(root)["groups"]:
        for rule in group["rules"]:
            place = rule.get("annotations", {}).get("runbook", "")
            if "alert" in rule and place.removeprefix("docs/runbook.md#") not in anchors:
                yield f"{rule['alert']}: docs/runbook.md has no section for {place!r}"


CHECKS: tuple[Callable[[Path], Iterator[str]], ...] = (
    dockerfile, compose_schema, compose_config, compose_gpus, compose_variables, compiler_caches, kubernetes,
    kubernetes_schema, rules, dashboard_types, dashboard_layout, metric_names, runbook,
)  # fmt: skip


def main(root: Path) -> int:
    failed = 0
    for check in CHECKS:
        try:
            found = list(check(root))
        except Skipped as reason:
            print(f"skipped  {check.__name__}: {reason}")
            continue
        except Unrenderable as error:
            found = [str(error)]
        failed += bool(found)
        print(f"{'FAILED' if found else 'ok':8} {check.__name__}")
        for fault in found:
            print(f"         {fault}")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT) else 0)
