"""A small run on real processes, with everything that can be broken at hand.

The launcher (`calopd run`) starts the rollouts and the learner. Redis and the teachers run elsewhere, as in a cluster:
under a supervisor of their own, each behind a proxy.
"""

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import redis

from calopd.config import Config, load_config
from calopd.core.environment import TOKEN
from calopd.core.errors import ConfigError
from calopd.local import embedded_redis
from calopd.local.entry_point import ends_with_this_process
from calopd.local.supervisor import Process, Supervisor
from calopd.rundir.files import read_lines
from calopd.rundir.run_id import read_run_id
from calopd.transport.queue import Queue, open_queue
from tests.chaos.tcp_proxy import TcpProxy
from tests.ports import free_ports
from tests.services.processes import ROOT
from tests.tiny import Tiny

REPLICAS = 2
ROLES = ("launcher", "learner", "redis", *(f"{role}-{i}" for role in ("rollout", "teacher") for i in range(REPLICAS)))
LONGEST_TIMEOUT = 4.0
"""Seconds of the longest time-out of a call or a lease."""
STALL_SECONDS = 20.0
"""Seconds after which a process gives itself up, and others give up a silent learner; nothing waits longer."""

SETTINGS = {
    "RUN__DETERMINISTIC": "true",
    "RUN__STALL_SECONDS": str(STALL_SECONDS),
    "ROLLOUT__REPLICAS": str(REPLICAS),
    "ROLLOUT__LEASE_SECONDS": "3.0",
    "ROLLOUT__MAX_TOKENS": "16",
    "LEARNER__TRAJECTORIES": "8",
    "LEARNER__CHECKPOINT_EVERY": "2",
    "TEACHER__DEADLINE_SECONDS": str(LONGEST_TIMEOUT),
    "EVALUATION__PROBLEMS": "0",
}


@dataclass(kw_only=True)
class Stage:
    """The processes of one run; everything happens in the folder `root`."""

    root: Path
    config: Config
    password: str
    proxies: dict[str, TcpProxy]
    supervisor: Supervisor
    environment: dict[str, str]
    launcher: "subprocess.Popen[bytes] | None" = None
    resumes: int = 0
    family: set[psutil.Process] = field(default_factory=set)
    """Everything that the launchers have started, as far as it was seen."""
    announced: dict[str, list[str]] = field(default_factory=dict)
    """Policy version -> the different digests under which it was announced."""
    _last_announcement: str = "-"

    @property
    def log(self) -> Path:
        return self.root / "launcher.log"

    @property
    def steps_done(self) -> int:
        return len(read_lines(self.config.run_dir.metrics))

    def start_launcher(self) -> None:
        """`calopd run`, or its `--resume` if the run has begun, once everything of the last launcher has ended."""
        _, alive = psutil.wait_procs(self.family, timeout=60)
        assert not alive, f"left over from a killed launcher: {[p.cmdline() for p in alive]}"
        self.family.clear()
        run_dir = self.config.run_dir
        begun = run_dir.config.exists()
        arguments = ["--resume", str(run_dir)] if begun else [str(self.root / "chaos.toml")]
        with self.log.open("ab") as out:
            self.launcher = subprocess.Popen(
                [sys.executable, "-m", "calopd.cli", "run", *arguments],
                cwd=ROOT,
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=ends_with_this_process(),
            )
        self.resumes += begun

    def processes(self, role: str) -> list[psutil.Process]:
        """The processes of a role at this moment; the first one is the parent of the others."""
        if role == "launcher":
            return [psutil.Process(self.launcher.pid)] if self.launcher and self.launcher.poll() is None else []
        for process in self.supervisor.processes:
            if process.name == role:
                return [psutil.Process(process.popen.pid)] if process.popen and process.popen.poll() is None else []
        return [child for child in self._children() if self._is_of(child, role)]

    def _is_of(self, child: psutil.Process, role: str) -> bool:
        try:
            words = child.cmdline()
        except psutil.NoSuchProcess:  # it has just ended
            return False
        service = next((word for word in words if word.startswith("services.")), "")
        if role == "learner":
            return service.startswith("services.learner")
        return f"rollout.port={self.config.rollout.port + int(role[-1])}" in words

    def _children(self) -> list[psutil.Process]:
        if self.launcher is None or self.launcher.poll() is not None:
            return []
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.launcher.pid).children(recursive=True)
            self.family.update(children)
            return children
        return []

    def is_ready(self, role: str) -> bool:
        """Whether a role answers; the launcher does so by the learner and the rollouts that it has started."""
        config = self.config
        try:
            if role == "redis":
                return bool(self.redis().ping())
            if role == "learner":
                return answers(config.learner.port, "/healthz")
            if role.startswith("rollout-"):
                return answers(config.rollout.port + int(role[-1]), "/readyz")
            if role.startswith("teacher-"):
                return answers(config.teacher.metrics_port + int(role[-1]), "/metrics")
            return all(self.is_ready(other) for other in ("learner", *(f"rollout-{i}" for i in range(REPLICAS))))
        except (OSError, redis.RedisError):
            return False

    def note_policies(self) -> None:
        """Remember what has been announced since the last call; Redis keeps only the latest announcements."""
        with suppress(redis.RedisError, OSError, ConfigError):
            key = f"calopd:{read_run_id(self.config.run_dir, 0)}:policies"
            for entry, fields in self.redis().xrange(key, min=self._last_announcement):
                self._last_announcement = f"({entry.decode()}"
                digests = self.announced.setdefault(fields[b"version"].decode(), [])
                if (digest := fields[b"sha256"].decode()) not in digests:
                    digests.append(digest)

    def queue(self) -> Queue:
        """The run's queue, not by the proxy."""
        url = embedded_redis.server_url(self.config.queue.port, self.password)
        return open_queue(url, read_run_id(self.config.run_dir), timeout_seconds=5)

    def redis(self) -> Any:
        """The server itself, not by the proxy."""
        return redis.Redis(port=self.config.queue.port, password=self.password, socket_timeout=2)


def has_ended(process: psutil.Process) -> bool:
    """Asked without waiting for the process: psutil would take the exit code away from its parent."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def answers(port: int, path: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
        return bool(answer.status == 200)


@contextmanager
def stage(root: Path, tiny: Tiny, steps: int) -> Iterator[Stage]:
    """Start Redis and the teachers; nothing is left of them at the end of the block."""
    root.mkdir(parents=True)
    (temporary := root / "tmp").mkdir()
    teachers, metrics, teacher_proxies, (redis_proxy,) = (free_ports(n) for n in (REPLICAS, REPLICAS, REPLICAS, 1))
    file = root / "chaos.toml"
    file.write_text(tiny.config("chaos", steps=steps))
    addresses = json.dumps([f"127.0.0.1:{port}" for port in teacher_proxies])
    password = secrets.token_urlsafe(12)
    environment = {
        **os.environ,
        **{f"CALOPD__{name}": value for name, value in SETTINGS.items()},
        "CALOPD__RUN__DIR": str(root / "runs"),
        TOKEN.name: secrets.token_urlsafe(12),
        "TMPDIR": str(temporary),
        "CALOPD__QUEUE__URL": embedded_redis.server_url(redis_proxy, password),
        "CALOPD__TEACHER__ADDRESSES": addresses,
        "CALOPD__TEACHER__PORT": str(teachers[0]),
        "CALOPD__TEACHER__METRICS_PORT": str(metrics[0]),
    }
    config = load_config(file, (), environment)
    proxies = {f"teacher-{i}": TcpProxy(teacher_proxies[i], teachers[i]) for i in range(REPLICAS)}
    proxies["redis"] = TcpProxy(redis_proxy, config.queue.port)
    for proxy in proxies.values():
        proxy.start()
    supervisor = Supervisor()
    command = embedded_redis.server_command(root / "redis", config.queue.port, password)
    server = Process(name="redis", command=command, log_file=root / "redis.log")
    server.command += ["--pidfile", str(server.progress_file)]
    supervisor.add(server)
    for i in range(REPLICAS):
        ports = (f"teacher.port={teachers[i]}", f"teacher.metrics_port={metrics[i]}")
        words = [word for setting in ports for word in ("--set", setting)]
        command = [sys.executable, "-m", "services.teacher_scorer", "--config", str(file), *words]
        environ = {**environment, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        log = root / f"teacher-{i}.log"
        supervisor.add(Process(name=f"teacher-{i}", command=command, log_file=log, environment=environ))
    embedded_redis.wait_until_ready(config.queue.url)
    found = Stage(
        root=root, config=config, password=password, proxies=proxies, supervisor=supervisor, environment=environment
    )
    try:
        yield found
    finally:
        if found.launcher is not None and found.launcher.poll() is None:
            found.launcher.terminate()
            with suppress(subprocess.TimeoutExpired):
                found.launcher.wait(30)
            found.launcher.kill()
        supervisor.stop()
        for proxy in proxies.values():
            proxy.stop()


@dataclass(frozen=True)
class Undisturbed:
    """The results of a run without faults."""

    directory: str
    announced: dict[str, list[str]]


def run_undisturbed(root: Path, tiny: Tiny, steps: int, seconds: float) -> Undisturbed:
    """The same run without faults."""
    with stage(root, tiny, steps) as found:
        found.start_launcher()
        assert found.launcher is not None
        deadline = time.monotonic() + seconds
        while found.launcher.poll() is None:
            assert time.monotonic() < deadline, found.log.read_text()
            found.supervisor.check()
            found.note_policies()
            time.sleep(0.2)
        assert found.launcher.returncode == 0, found.log.read_text()
        found.note_policies()
        return Undisturbed(str(found.config.run_dir), found.announced)
