"""The CPU stack in containers, in a folder with the files of a clone that `docker compose` and `make down` read."""

import json
import re
import shlex
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.deploy import check, images
from tests.docs.commands import Documented, docker_commands
from tests.ports import free_port

PROJECT = "calopd-test"
SERVICES = ("redis", "teacher-0", "rollout-0", "learner", "prometheus")
"""All but Grafana, whose image cannot be made from packages."""
TRAJECTORIES = 32
"""A quarter of the demo's: many steps, so that every kill falls into another one."""
PLACEHOLDERS = {"ROLE": "learner", "NAME": "rollout-0"}
NOT_EXECUTED = {
    "docker compose logs -f models": "the demo downloads nothing: its stack has no such service",
    "docker run --rm --gpus": "needs GPUs",
    'docker run --rm --user "$(id -u)"': "needs the hub",
    "docker image rm": "the next test would build the images again",
}
"""The beginnings of documented commands, and why they do not run here."""
KINDS = ("restart", "up", "ps", "logs", "exec", "cp", "inspect", "run", "down")
"""Commands that test_stack.py runs, each at a moment that suits it."""

SAID_EVERY = 30.0
"""Seconds between two lines of something that is waited for."""


class Stack:
    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.prometheus = folder, free_port()
        for name in ("Makefile", ".env.example", "docker-compose.yml", "docker-compose.cpu.yml"):
            shutil.copy(check.ROOT / name, folder)
        for name in ("deploy", "configs"):
            shutil.copytree(check.ROOT / name, folder / name)
        text = (check.ROOT / "configs" / "demo.toml").read_text()
        for key, value in (("steps", steps), ("problems", 200), ("trajectories", TRAJECTORIES)):
            text = re.sub(rf"^{key} = \d+", f"{key} = {value}", text, flags=re.MULTILINE)
        (folder / "run.toml").write_text(text)
        (folder / "run.toml").chmod(0o644)
        values = {
            **check.SECRETS,
            "DEMO_CONFIG": "./run.toml",
            "PROMETHEUS_PORT": self.prometheus,
            "COMPOSE_PROJECT_NAME": PROJECT,
            "COMPOSE_FILE": "docker-compose.yml:docker-compose.cpu.yml",
        }
        (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self._command = check.compose_command()
        self._left = {str(command): command for command in docker_commands()}

    def compose(self, *arguments: str) -> str:
        return self.execute([*self._command, *arguments])

    def execute(self, words: list[str]) -> str:
        """Run a command in the folder of the project."""
        code, said = check.run(words, self.folder)
        assert code == 0, f"{shlex.join(words)}: exit code {code}\n{said}"
        return said

    def run_documented(self, kind: str, having: str = "") -> dict[str, str]:
        """Run the commands of the pages that are of a kind and contain a text: each with its output."""
        said = {}
        for command in [c for c in self._left.values() if kind_of(c) == kind and having in c.text]:
            del self._left[str(command)]
            if not excepted(command):
                text = command.text
                said[text] = self.execute(["sh", "-c", self._as_executed(text)])
                print(f"{command}: done", flush=True)
        return said

    def not_run(self) -> list[str]:
        """The documented commands that nothing has run yet."""
        return [place for place, command in self._left.items() if not excepted(command)]

    def _as_executed(self, text: str) -> str:
        """A documented command with what stands for something of the reader's; following a log would not end."""
        if "docker compose" not in text:
            return of_this_stack(text)
        words = [PLACEHOLDERS.get(word, word) for word in text.split()]
        text = " ".join(words).replace(" logs -f ", " logs ")
        if text.endswith("docker compose up -d"):
            text = f"{text} {' '.join(SERVICES)}"
        if self._command[-1].endswith("docker-compose") and self.compose("version", "--short").startswith("1."):
            text = re.sub(r"docker compose cp ([\w-]+)", lambda m: f"{images.DOCKER} cp {self.container(m[1])}", text)
        return text.replace("docker compose", shlex.join(self._command))

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


def kind_of(command: Documented) -> str:
    """The word after `docker compose` or `docker`."""
    words = command.words[command.words.index("docker") + 1 :]
    return words[1] if words[0] == "compose" else words[0]


def of_this_stack(text: str) -> str:
    """A plain `docker` command with the engine, the volumes, the images and the run of this stack."""
    text = text.replace("docker", images.DOCKER, 1).replace("calopd_", f"{PROJECT}_").replace(" NAME", " demo")
    return re.sub(r"(calopd/\w+):local\b", rf"\1:{images.TAG}", text)


def excepted(command: Documented) -> bool:
    return command.text.startswith(tuple(NOT_EXECUTED))


def left_behind(kind: str, *listing: str) -> list[str]:
    """Names of the project's containers, networks or volumes."""
    label = f"label=com.docker.compose.project={PROJECT}"
    return images.docker(kind, "ls", *listing, "--filter", label).split()


def wait(what: str, until: Callable[[], bool], seconds: float = 600) -> float:
    """Wait, and say so at the start, now and then, and at the end: the seconds that it took."""
    print(f"{what}: waiting", flush=True)
    start = said = time.monotonic()
    while not until():
        now = time.monotonic()
        assert now - start < seconds, f"{what}: not within {seconds:.0f} s"
        if now - said >= SAID_EVERY:
            print(f"{what}: waiting for {now - start:.0f} s", flush=True)
            said = now
        time.sleep(0.5)
    print(f"{what}: {time.monotonic() - start:.1f} s", flush=True)
    return time.monotonic() - start
