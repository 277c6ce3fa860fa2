"""`make test-compose`: the CPU stack in containers, from images to an empty engine. It needs a Docker engine.

One run is trained to its end while every role is killed, by a crash inside its container and by `docker kill`.
"""

import json
import os
import re
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import check, images, promql
from tests.ports import free_port

PROJECT = "calopd-test"
ROLES = ("teacher-0", "rollout-0", "learner")
SERVICES = ("redis", *ROLES, "prometheus")
"""All but Grafana, whose image cannot be made from packages."""
STEPS = int(os.environ.get("CALOPD_TEST_STEPS", "70"))
OF_EOPD = {"calopd_learner_forward_kl_nats", "calopd_learner_gate_open_ratio"}
"""Metrics that a run of Cal-OPD does not have."""
TRAJECTORIES = 32
"""A quarter of the demo's: many steps, so that every kill falls into another one."""


class Stack:
    def __init__(self, folder: Path) -> None:
        self.prometheus = free_port()
        config = (check.ROOT / "configs" / "demo.toml").read_text()
        shorter = re.sub(r"^steps = \d+", f"steps = {STEPS}", config, flags=re.MULTILINE)
        shorter = re.sub(r"^problems = \d+", "problems = 200", shorter, flags=re.MULTILINE)
        shorter = re.sub(r"^trajectories = \d+", f"trajectories = {TRAJECTORIES}", shorter, flags=re.MULTILINE)
        (folder / "run.toml").write_text(shorter)
        (folder / "run.toml").chmod(0o644)
        values = {
            **check.SECRETS,
            "DEMO_CONFIG": folder / "run.toml",
            "PROMETHEUS_PORT": self.prometheus,
            "COMPOSE_PROJECT_NAME": PROJECT,
            "COMPOSE_FILE": "docker-compose.yml:docker-compose.cpu.yml",
        }
        (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self._command = [*check.compose_command(), "--env-file", str(folder / ".env")]
        self.restarts: dict[str, int] = {}

    def compose(self, *arguments: str) -> str:
        code, said = check.run([*self._command, *arguments], check.ROOT)
        assert code == 0, said
        return said

    def container(self, service: str) -> str:
        return self.compose("ps", "-a", "-q", service).splitlines()[-1]

    def inspect(self, service: str, form: str) -> str:
        return images.docker("inspect", "-f", "{{" + form + "}}", self.container(service))

    def healthy(self, service: str) -> bool:
        return self.inspect(service, ".State.Health.Status") == "healthy"

    def finished(self) -> bool:
        return (
            self.inspect("learner", ".State.Status") == "exited" and self.inspect("learner", ".State.ExitCode") == "0"
        )

    def steps_done(self) -> int:
        """Lines of metrics.jsonl, read from the volume by a container of its own: any other may be dead."""
        volume, image = f"{PROJECT}_runs:/runs:ro", f"calopd/learner:{images.TAG}"
        file = "/runs/demo/metrics.jsonl"
        return len(
            images.docker("run", "--rm", "-v", volume, "--entrypoint", "cat", image, file, check=False).splitlines()
        )

    def has_steps(self, count: int) -> bool:
        return self.steps_done() >= count

    def restarted(self, service: str, before: int) -> bool:
        return int(self.inspect(service, ".RestartCount")) > before

    def crash(self, service: str) -> None:
        """Kill -9 of the process under the container's init: the engine starts it again by its restart policy."""
        command = "kill -9 $(cat /proc/1/task/1/children)"
        images.docker("exec", self.container(service), "sh", "-c", command, check=False)

    def query(self, path: str, **arguments: Any) -> Any:
        url = f"http://127.0.0.1:{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]


def wait(what: str, until: Callable[[], bool], seconds: float = 600) -> float:
    start = time.monotonic()
    while not until():
        assert time.monotonic() - start < seconds, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.5)
    print(f"{what}: {time.monotonic() - start:.1f} s", flush=True)
    return time.monotonic() - start


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if shutil.which(images.DOCKER) is None or check.run([images.DOCKER, "info"], check.ROOT)[0]:
        pytest.skip("no Docker engine answers")
    start = time.monotonic()
    images.ensure_base()
    images.ensure_stand_ins()
    images.build_roles()
    print(f"\nimages built: {time.monotonic() - start:.0f} s", flush=True)
    stack = Stack(tmp_path_factory.mktemp("stack"))
    stack.compose("down", "-v", "--remove-orphans")
    yield stack
    stack.compose("down", "-v", "--remove-orphans")


def test_images_hold_no_root_no_compiler_no_cache_no_secret(stack: Stack) -> None:
    for role in images.ROLES:
        image = f"calopd/{role}:{images.TAG}"
        print(f"{image}: {images.size_mb(image):.0f} MB", flush=True)
        script = (
            "id -u; for tool in gcc g++ cc clang make; do command -v $tool; done; "
            "find /opt /calopd /tmp /var/cache/apt /var/lib/apt -name '*.whl' -o -name '*.deb' -o -name '*_Packages'; "
            "find / -xdev -path '*/.cache/*' 2>/dev/null"
        )
        said = images.docker("run", "--rm", "--entrypoint", "sh", image, "-c", script, check=False)
        assert said.split() == ["10001"], said
        history = images.docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image)
        assert not re.search(r"index-url|find-links|password|BEGIN CERT", history), history
        content = images.docker(
            "run", "--rm", "--entrypoint", "sh", image, "-c", "cat /etc/pip.conf; ls /run/secrets", check=False
        )
        assert content == ""
        assert "org.opencontainers.image.licenses" in images.docker("inspect", "-f", "{{json .Config.Labels}}", image)


def test_another_commit_adds_no_layer(stack: Stack) -> None:
    def layers() -> list[str]:
        return [
            images.docker("inspect", "-f", "{{json .RootFS.Layers}}", f"calopd/{r}:{images.TAG}") for r in images.ROLES
        ]

    before, start = layers(), time.monotonic()
    images.build_roles(revision="another")
    print(f"images built for another commit: {time.monotonic() - start:.1f} s", flush=True)
    assert layers() == before
    label = images.docker(
        "inspect", "-f", '{{index .Config.Labels "org.opencontainers.image.revision"}}', f"calopd/learner:{images.TAG}"
    )
    assert label == "another"


def test_the_run_trains_to_its_end_whatever_is_killed(stack: Stack) -> None:
    began = time.time()
    stack.compose("up", "-d", "--no-build", *SERVICES)
    wait("all healthy", lambda: all(stack.healthy(service) for service in SERVICES))
    wait("first two steps", lambda: stack.steps_done() >= 2)
    _targets_are_scraped(stack)
    for service in ("teacher-0", "rollout-0", "learner", "redis"):
        restarts = int(stack.inspect(service, ".RestartCount"))
        stack.crash(service)
        wait(f"{service} crashed: restarted", partial(stack.restarted, service, restarts))
        wait(f"{service} crashed: two more steps", partial(stack.has_steps, stack.steps_done() + 2))
        images.docker("kill", stack.container(service))
        before = stack.steps_done()
        stack.compose("up", "-d", "--no-build", *SERVICES)
        wait(f"{service} killed: two more steps", partial(stack.has_steps, before + 2))
    _call_without_a_token(stack)
    images.docker("kill", stack.container("prometheus"))
    stack.compose("up", "-d", "--no-build", *SERVICES)
    wait("prometheus killed: healthy", lambda: stack.healthy("prometheus"))
    wait("the run is finished", stack.finished, seconds=1_800)
    _the_run_is_whole(stack)
    _the_logs_say_what_happened(stack)
    _every_expression_has_data(stack, began)


def _call_without_a_token(stack: Stack) -> None:
    """Nobody gets in; and the teacher counts it as refused."""
    script = """
import grpc
from calopd.transport.v1 import teacher_scorer_pb2 as pb, teacher_scorer_pb2_grpc as service
try:
    service.TeacherScorerStub(grpc.insecure_channel("teacher:50051")).Describe(pb.DescribeRequest(), timeout=60)
except grpc.RpcError as error:
    print(error.code().name)
"""
    said = images.docker("exec", stack.container("rollout-0"), "python", "-c", script)
    assert said == "UNAUTHENTICATED"


def _targets_are_scraped(stack: Stack) -> None:
    def up() -> bool:
        targets = stack.query("targets", state="active")["activeTargets"]
        return {t["labels"]["job"] for t in targets if t["health"] == "up"} == {
            "teacher",
            "rollout",
            "learner",
            "prometheus",
        }

    wait("all targets scraped", up, seconds=60)


def _the_run_is_whole(stack: Stack) -> None:
    """Every trajectory counted once; the report can be written from what the containers left."""
    script = (
        "python -m calopd.cli report /runs/demo >&2; cat /runs/demo/metrics.jsonl; tail -c 2000 /runs/demo/summary.json"
    )
    container = stack.container("teacher-0")
    lines = images.docker("exec", container, "cat", "/runs/demo/metrics.jsonl").splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["step"] for step in steps] == list(range(STEPS))
    assert all(step["tickets_used"] == TRAJECTORIES and step["tickets_missing"] == 0 for step in steps)
    images.docker("exec", container, "sh", "-c", script)
    summary = json.loads(images.docker("exec", container, "cat", "/runs/demo/summary.json"))
    assert summary["trajectories_used"] == TRAJECTORIES * STEPS
    seconds = sorted(step["seconds"] for step in steps)
    print(f"seconds a step: median {seconds[len(seconds) // 2]:.1f}, least {seconds[0]:.1f}", flush=True)
    print(f"held-out accuracy {summary['accuracy_before']:.3f} -> {summary['accuracy_after']:.3f}", flush=True)


def _the_logs_say_what_happened(stack: Stack) -> None:
    assert f"the run is complete: {STEPS} steps" in stack.compose("logs", "learner").splitlines()[-1]
    assert "Failed to load weights" not in stack.compose("logs", "rollout-0")


def _every_expression_has_data(stack: Stack, began: float) -> None:
    asked = promql.rule_expressions(check.alert_rules(check.ROOT))
    for name, page in check.pages(check.ROOT).items():
        asked |= {f"{name}, {where}": expression for where, expression in promql.panel_expressions(page).items()}
    asked = {where: text for where, text in asked.items() if not promql.names_in(text) & OF_EOPD}
    empty = []
    for where, expression in asked.items():
        found = stack.query("query_range", query=expression, start=began, end=time.time(), step=5)["result"]
        if not any(value != "NaN" for series in found for _, value in series["values"]):
            empty.append(f"{where}: {expression}")
    print(f"{len(asked)} expressions of rules, panels and annotations, {len(empty)} without data", *empty, sep="\n  ")
    assert empty == []


def test_down_leaves_nothing(stack: Stack) -> None:
    stack.compose("down", "-v", "--remove-orphans")
    label = f"label=com.docker.compose.project={PROJECT}"
    assert images.docker("ps", "-aq", "--filter", label) == ""
    assert images.docker("volume", "ls", "-q", "--filter", label) == ""
    assert images.docker("network", "ls", "-q", "--filter", label) == ""
