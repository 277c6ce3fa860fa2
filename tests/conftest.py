"""Real parts for the tests: tiny models and a Redis-protocol server."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from calopd.local import embedded_redis
from tests.ports import free_port, free_ports
from tests.tiny import make_model, make_problems, make_tokenizer

# The same examples in every run, and no time limits: neither a draw nor a busy machine decides whether the tests pass.
# `pytest --hypothesis-profile=explore` draws new examples.
settings.register_profile("repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

START_SECONDS = 120.0
"""How long a Redis-protocol server may take to answer on a busy machine."""


@dataclass(frozen=True)
class Tiny:
    """Directories of tiny models of one vocabulary, and problems."""

    root: Path
    teacher: Path
    student: Path
    untied: Path
    train: Path
    heldout: Path

    def config(self, name: str, *, steps: int = 2, extra: str = "") -> str:
        """A configuration for a run of a few seconds, at ports of its own."""
        teacher, metrics, learner, queue, rollout, *_ = free_ports(8)  # further replicas listen above rollout.port
        return f"""
[run]
name = "{name}"
dir = "{self.root / "runs"}"
steps = {steps}
[data]
train = "{self.train}"
heldout = "{self.heldout}"
max_prompt_tokens = 256
max_context_tokens = 512
[student]
path = "{self.student}"
[teacher]
path = "{self.teacher}"
port = {teacher}
metrics_port = {metrics}
max_tokens = 1024
canary_seconds = 1e6  # once, at the start: later ones would count among the tokens of a test
threads = 1
[rollout]
engine = "torch"
port = {rollout}
max_tokens = 24
max_in_flight = 16
threads = 1
lease_seconds = 10.0
[learner]
port = {learner}
trajectories = 16
learning_rate = 1e-3
micro_batch_tokens = 1024
recompute_activations = false
threads = 1
[evaluation]
problems = 8
every = 2
max_tokens = 24
top_p = 1.0
[queue]
port = {queue}
{extra}"""

    def write_config(self, name: str, *, steps: int = 2, extra: str = "") -> Path:
        file = self.root / f"{name}.toml"
        file.write_text(self.config(name, steps=steps, extra=extra))
        return file


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    root = tmp_path_factory.mktemp("tiny")
    tokenizer = make_tokenizer()
    return Tiny(
        root=root,
        teacher=make_model(root / "teacher", seed=1, tokenizer=tokenizer),
        student=make_model(root / "student", seed=2, layers=1, tokenizer=tokenizer),
        untied=make_model(root / "untied", seed=3, layers=1, tied=False, tokenizer=tokenizer),
        train=make_problems(root / "train.jsonl", 64),
        heldout=make_problems(root / "heldout.jsonl", 16, seed=1),
    )


@dataclass
class Server:
    """A server whose process a test may kill and start again."""

    command: list[str]
    url: str
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        embedded_redis.wait_until_ready(self.url, START_SECONDS)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @contextmanager
    def running(self) -> Iterator["Server"]:
        try:
            self.start()
            yield self
        finally:
            self.kill()


@pytest.fixture(params=["embedded", "redis-server"])
def redis_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """The embedded server, and a plain redis-server where the machine has one."""
    port = free_port()
    command = embedded_redis.server_command(tmp_path, port, "secret")
    if request.param == "redis-server":
        binary = shutil.which("redis-server")
        if binary is None:
            pytest.skip("no redis-server on this machine")
        command[0] = binary
    with Server(command, embedded_redis.server_url(port, "secret")).running() as server:
        yield server
