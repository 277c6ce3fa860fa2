"""`make up-cpu`, `make up` and `make down` with a docker that only writes down how it was called."""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.deploy import check

FAKE = """#!/bin/sh
printf '%s\n' "$*" >> "$CALLS"
case "$*" in
  *"compose up"*) echo "$REVISION$CALOPD_VERSION" > "$CALLS.versions" ;;
  *"ps -a -q"*) cat "$CALLS.containers" 2>/dev/null ;;
  *deploy.docker.compose*) echo "# roles of ${@##* }" ;;
  volume*ls*) echo calopd_policies ;;
esac
"""


class Project:
    """The files that these targets use, in a folder of their own."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls = root, root / "calls"
        for file in ("Makefile", ".env.example", *check.COMPOSE_FILES, "docker-compose.cpu.yml"):
            shutil.copy(check.ROOT / file, root)
        shutil.copytree(check.ROOT / "deploy/docker", root / "deploy/docker")
        docker = root / "bin" / "docker"
        docker.parent.mkdir()
        docker.write_text(FAKE)
        docker.chmod(0o755)

    def make(self, *arguments: str) -> str:
        path = f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
        unset = ("PIP_CONF", "CA_BUNDLE", "BUILD_FLAGS", "TORCH_INDEX", "MAKEFLAGS", "MAKELEVEL", "CONFIG")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        done = subprocess.run(
            ["make", *arguments, "COMPOSE=docker compose"], cwd=self.root, text=True, capture_output=True,
            env={**environment, "PATH": path, "CALLS": str(self.calls)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def called(self) -> list[str]:
        lines = self.calls.read_text().splitlines()
        self.calls.unlink()
        return lines

    def edit(self, name: str, value: str) -> None:
        file = self.root / ".env"
        file.write_text(re.sub(rf"^{name}=.*$", f"{name}={value}", file.read_text(), flags=re.MULTILINE))

    def services(self) -> set[str]:
        """What plain `docker compose` acts on."""
        try:
            command = check.compose_command()
        except check.Skipped as reason:
            pytest.skip(str(reason))
        code, said = check.run([*command, "config", "--services"], self.root)
        assert code == 0, said
        return set(said.split())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


SHARED = {"redis", "prometheus", "grafana"}


def test_plain_commands_act_on_the_stack_that_was_started(project: Project) -> None:
    project.make("up-cpu")
    assert project.services() == SHARED | {"teacher-0", "rollout-0", "learner"}
    project.make("up-cpu")
    assert (project.root / ".env").read_text().count("\nCOMPOSE_FILE=") == 1
    shutil.copy(check.ROOT / "docker-compose.override.yml", project.root)
    started = [line for line in project.called() if " up " in f" {line} "]
    assert started == ["compose up -d --no-build --remove-orphans"] * 2
    assert project.calls.with_suffix(".versions").read_text() == "\n", "older versions would replace the containers"
    project.edit("COMPOSE_FILE", "docker-compose.yml:docker-compose.override.yml")
    assert {"models", "teacher-1", "rollout-3", "learner"} < project.services()


def test_secrets_stay_private_when_the_stack_changes(project: Project) -> None:
    project.make(".env")
    before = (project.root / ".env").read_text()
    project.make("up-cpu")
    after = project.root / ".env"
    assert stat.S_IMODE(after.stat().st_mode) == 0o600
    kept = [line for line in before.splitlines() if not line.startswith("COMPOSE_FILE=")]
    assert [line for line in after.read_text().splitlines() if not line.startswith("COMPOSE_FILE=")] == kept


def test_the_ports_of_the_env_file_are_shown(project: Project) -> None:
    project.make(".env")
    project.edit("GRAFANA_PORT", "3333")
    assert "http://127.0.0.1:3333 " in project.make("up-cpu")


def test_another_stack_or_pair_replaces_the_one_before(project: Project) -> None:
    """Its tmpfs for policies has another size, which compose cannot change in place. Stopped containers hold it too."""
    project.calls.with_suffix(".containers").write_text("a-container\n")
    project.make("up")
    project.called()
    project.make("up")
    assert not any("down" in line for line in project.called())
    project.edit("CONFIG", "./configs/qwen3-30b-to-8b.toml")
    for target in ("up", "up-cpu"):
        project.make(target)
        called = project.called()
        down = called.index("compose down --remove-orphans")
        assert (
            down < called.index("volume rm calopd_policies") < called.index("compose up -d --no-build --remove-orphans")
        )


def test_the_build_gets_pip_settings_and_certificates(project: Project, tmp_path: Path) -> None:
    for name in ("pip.conf", "ca.pem"):
        (tmp_path / name).write_text("")
    project.make(".env")
    project.edit("PIP_CONF", str(tmp_path / "pip.conf"))
    project.make("up-cpu", f"CA_BUNDLE={tmp_path / 'ca.pem'}", "BUILD_FLAGS=--network=host", "TORCH_INDEX=")
    builds = [line for line in project.called() if line.startswith("build ")]
    assert [re.findall(r"-t (\S+)", line) for line in builds] == [
        [f"calopd/{role}:local-cpu"] for role in ("teacher", "rollout", "learner")
    ]
    for line in builds:
        assert f"--secret id=pip_conf,src={tmp_path / 'pip.conf'} --secret id=ca,src={tmp_path / 'ca.pem'}" in line
        assert "--build-arg BASE=python:3.11-slim-bookworm --build-arg TORCH_INDEX= " in line
        assert line.endswith("--network=host .")


def test_the_build_gets_the_index_of_torch(project: Project) -> None:
    def given(*arguments: str) -> set[str]:
        project.make("up-cpu", *arguments)
        builds = [line for line in project.called() if line.startswith("build ")]
        return {word for line in builds for word in line.split() if word.startswith("TORCH_INDEX=")}

    project.make(".env")
    assert given() == set()
    with (project.root / ".env").open("a") as file:
        file.write("TORCH_INDEX=https://mirror.example.com\n")
    assert given() == {"TORCH_INDEX=https://mirror.example.com"}
    assert given("TORCH_INDEX=") == {"TORCH_INDEX="}
    project.edit("TORCH_INDEX", "")
    assert given() == {"TORCH_INDEX="}


def test_the_build_gets_proxies_in_either_case(project: Project) -> None:
    project.make(".env")
    with (project.root / ".env").open("a") as file:
        file.write("NO_PROXY=.example.com\n")
    proxies = ("HTTPS_PROXY=http://proxy:1", "https_proxy=http://proxy:2", "http_proxy=http://proxy:3")
    project.make("up-cpu", *proxies, "NO_PROXY=")
    builds = [line for line in project.called() if line.startswith("build ")]
    assert len(builds) == 3
    for line in builds:
        for given in (*proxies, "NO_PROXY=.example.com"):
            assert f"--build-arg {given} " in line


def test_pictures_are_drawn_from_the_port_of_the_env_file(project: Project) -> None:
    """It is created if it does not exist, as for the other targets that read it."""
    for name in ("requirements/cpu.lock", "requirements/gpu.lock", "pyproject.toml", ".venv/.ready"):
        file = project.root / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
    assert "created .env" in project.make("-n", "dashboard-pictures")


def test_clean_keeps_runs_and_evaluations(project: Project) -> None:
    removed = project.make("-n", "clean").split()
    assert removed[:2] == ["rm", "-rf"]
    assert {".venv", "build"} < set(removed)
    assert not [word for word in removed if re.search("runs|evaluations", word)]


def test_what_changes_with_every_commit_is_behind_the_packages() -> None:
    """Else every commit makes a new layer of 2.7 GB: an argument is part of the key of all steps behind it."""
    text = (check.ROOT / "deploy/docker/Dockerfile").read_text()
    runtime = text[text.index(" AS runtime") : text.index(" AS teacher")]
    last = max(match.start() for match in re.finditer(r"^(RUN|COPY)", runtime, re.MULTILINE))
    assert runtime.index("ARG VERSION") > last
    assert runtime.index("ARG REVISION") > last
