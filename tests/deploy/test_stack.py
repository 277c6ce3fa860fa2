"""`make test-compose`: the CPU stack in containers, from images to an empty engine. It needs a Docker engine.

One run is trained to its end while every role is killed, by a crash inside its container and by `docker kill`.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from functools import partial

import pytest

from calopd.rundir.files import read_lines
from calopd.rundir.layout import RunDir
from tests.deploy import check, images, promql
from tests.deploy.stack import PROJECT, SERVICES, TRAJECTORIES, Stack, left_behind, wait

STEPS = int(os.environ.get("CALOPD_TEST_STEPS", "70"))
ABSENT = {
    "calopd_learner_forward_kl_nats", "calopd_learner_gate_open_ratio",
    "calopd_learner_importance_ratio", "calopd_learner_importance_truncated_ratio",
}  # fmt: skip
"""Metrics that this run does not have: those of EOPD, and those of stale tokens."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if shutil.which(images.DOCKER) is None or check.run([images.DOCKER, "info"], check.ROOT)[0]:
        pytest.skip("no Docker engine answers")
    start = time.monotonic()
    images.ensure_base()
    images.ensure_stand_ins()
    images.build_roles()
    print(f"\nimages built: {time.monotonic() - start:.0f} s", flush=True)
    stack = Stack(tmp_path_factory.mktemp("stack"), STEPS)
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
    stack.compose("up", "-d", "--no-build", *SERVICES)  # as `make up-cpu` does
    wait("all healthy", lambda: all(stack.healthy(service) for service in SERVICES))
    wait("first two steps", lambda: stack.steps_done() >= 2)
    _targets_are_scraped(stack)
    stack.run_documented("restart")
    wait("rollout restarted: two more steps", partial(stack.has_steps, stack.steps_done() + 2))
    kills = 0
    for service in ("teacher-0", "rollout-0", "learner", "redis"):
        restarts = int(stack.inspect(service, ".RestartCount"))
        stack.crash(service)
        wait(f"{service} crashed: restarted", partial(stack.restarted, service, restarts))
        wait(f"{service} crashed: two more steps", partial(stack.has_steps, stack.steps_done() + 2))
        images.docker("kill", stack.container(service))
        before = stack.steps_done()
        stack.compose("up", "-d", "--no-build", *SERVICES)
        wait(f"{service} killed: two more steps", partial(stack.has_steps, before + 2))
        kills += 2
    _call_without_a_token(stack)
    images.docker("kill", stack.container("prometheus"))
    assert len(stack.run_documented("up")) == 1
    wait("prometheus killed: healthy", lambda: stack.healthy("prometheus"))
    print(f"{kills + 1} kills, all recovered", flush=True)
    wait("the run is finished", stack.finished, seconds=1_800)
    _documented_commands_show_the_run(stack)
    _the_run_is_whole(stack)
    assert "Failed to load weights" not in stack.compose("logs", "rollout-0")
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


def _documented_commands_show_the_run(stack: Stack) -> None:
    for said in stack.run_documented("ps").values():
        assert all(service in said for service in SERVICES if service != "learner"), said
    for said in stack.run_documented("logs").values():
        assert f"the run is complete: {STEPS} steps" in said.splitlines()[-1]
    assert len(stack.run_documented("exec")) == 1
    page = (stack.folder / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    assert len(stack.run_documented("cp")) == 1
    for said in stack.run_documented("inspect").values():
        assert "org.opencontainers.image.revision" in said


def _the_run_is_whole(stack: Stack) -> None:
    """Every trajectory counted once, in the copy that the documented command made."""
    run_dir = RunDir(stack.folder / "runs" / "demo")
    steps = read_lines(run_dir.metrics)
    assert [step["step"] for step in steps] == list(range(STEPS))
    assert all(step["tickets_used"] == TRAJECTORIES and step["tickets_missing"] == 0 for step in steps)
    summary = json.loads(run_dir.summary.read_text(encoding="utf-8"))
    assert summary["trajectories_used"] == TRAJECTORIES * STEPS
    assert not run_dir.report.exists()
    seconds = sorted(step["seconds"] for step in steps)
    print(f"{STEPS} steps; seconds a step: median {seconds[len(seconds) // 2]:.1f}, least {seconds[0]:.1f}", flush=True)
    print(f"held-out accuracy {summary['accuracy_before']:.3f} -> {summary['accuracy_after']:.3f}", flush=True)
    print(f"retained {summary['retained_ratio']:.3f}, zero {summary['zero_ratio']:.3f}", flush=True)


def _every_expression_has_data(stack: Stack, began: float) -> None:
    asked = promql.rule_expressions(check.alert_rules(check.ROOT))
    for name, page in check.pages(check.ROOT).items():
        asked |= {f"{name}, {where}": expression for where, expression in promql.panel_expressions(page).items()}
    asked = {where: text for where, text in asked.items() if not promql.names_in(text) & ABSENT}
    empty = []
    for where, expression in asked.items():
        found = stack.query("query_range", query=expression, start=began, end=time.time(), step=5)["result"]
        if not any(value != "NaN" for series in found for _, value in series["values"]):
            empty.append(f"{where}: {expression}")
    print(f"{len(asked)} expressions of rules, panels and annotations, {len(empty)} without data", *empty, sep="\n  ")
    assert empty == []


def test_make_down_keeps_the_data_only(stack: Stack) -> None:
    stack.execute(["make", "down"])
    assert left_behind("container", "-aq") == []
    assert left_behind("network", "-q") == []
    kept = set(left_behind("volume", "-q"))
    assert {f"{PROJECT}_{name}" for name in ("models", "runs", "redis", "prometheus")} <= kept
    assert f"{PROJECT}_policies" not in kept


def test_the_documented_move_restores_the_run_in_a_new_volume(stack: Stack) -> None:
    before = _files_of_the_run()
    assert len(stack.run_documented("run", "-czf")) == 1
    images.docker("volume", "rm", f"{PROJECT}_runs")
    assert len(stack.run_documented("run", "-xzf")) == 1
    assert _files_of_the_run() == before


def _files_of_the_run() -> list[str]:
    """Owners, names and contents in the volume of the runs."""
    script = (
        "stat -c %u:%g /runs; find /runs/demo -printf '%U:%G %y %p\\n'; find /runs/demo -type f -exec sha256sum {} +"
    )
    volume, image = f"{PROJECT}_runs:/runs:ro", f"calopd/learner:{images.TAG}"
    return sorted(images.docker("run", "--rm", "-v", volume, "--entrypoint", "sh", image, "-ec", script).splitlines())


def test_the_documented_removal_leaves_nothing(stack: Stack) -> None:
    assert len(stack.run_documented("down")) == 1
    assert left_behind("container", "-aq") == []
    assert left_behind("network", "-q") == []
    assert left_behind("volume", "-q") == []
    # The volume that `docker run` made for the moved run has no label.
    assert images.docker("volume", "ls", "-q", "--filter", f"name=^{PROJECT}_") == ""


def test_every_documented_command_was_run(stack: Stack) -> None:
    assert stack.not_run() == []
