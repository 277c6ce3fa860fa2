"""`calopd run`: a whole run on one machine, from the first process to the report."""

import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from calopd.config import Config, preflight
from calopd.core.errors import CalopdError, ConfigError
from calopd.local import embedded_redis
from calopd.local.display import Display
from calopd.local.supervisor import Process, Supervisor
from calopd.pages.report import write_report
from calopd.rundir.files import write_text
from calopd.rundir.layout import RunDir
from calopd.rundir.locks import exclusive
from calopd.rundir.run_id import ensure_run_id

POLL_SECONDS = 0.5


class Stopped(Exception):
    """The user asked to stop."""


def run(config: Config, *, resume: bool, overwrite: bool) -> None:
    """Train to the end and write the report."""
    run_dir = config.run_dir
    console = Console(soft_wrap=True)
    preflight.check(config)
    if not resume and not overwrite and run_dir.contents:
        raise ConfigError(
            f"{run_dir} exists: go on with it by `calopd run --resume {run_dir}`, or start anew with --overwrite"
        )
    run_dir.path.mkdir(parents=True, exist_ok=True)
    with exclusive(run_dir.launcher_lock, f"{run_dir} is being run by another process"):
        if not resume:
            _empty(run_dir)
        write_text(run_dir.config, config.to_toml())
        ensure_run_id(run_dir)
        supervisor = Supervisor()
        with stoppable(supervisor):
            try:
                _train(config, supervisor, console)
            finally:
                supervisor.stop()
    report = write_report(run_dir)
    _say_summary(console, run_dir, report)


def _train(config: Config, supervisor: Supervisor, console: Console) -> None:
    run_dir = config.run_dir
    environment = {
        "CALOPD_TOKEN": os.environ.get("CALOPD_TOKEN") or secrets.token_urlsafe(24),
        "PYTHONUNBUFFERED": "1",
        # Three processes share the cores: a thread that has nothing to do must not spin on one that another needs.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
    }
    if all(Path(path).is_dir() for path in (config.student.path, config.teacher.path)):
        environment["HF_HUB_OFFLINE"] = "1"
    if config.queue.url:
        url = config.queue.url
    else:
        password = secrets.token_urlsafe(24)
        url = embedded_redis.server_url(config.queue.port, password)
        command = embedded_redis.server_command(run_dir.redis, config.queue.port, password)
        supervisor.add(Process("redis", command, run_dir.logs / "redis.log"))
    embedded_redis.wait_until_ready(url)
    environment["CALOPD__QUEUE__URL"] = url

    def service(name: str, module: str, *settings: str, launcher: tuple[str, ...] = (), threads: int = 0) -> Process:
        command = [sys.executable, *launcher, "-m", module, "--config", str(run_dir.config)]
        for setting in settings:
            command += ["--set", setting]
        limits = {"OMP_NUM_THREADS": str(threads)} if threads else {}
        return supervisor.add(Process(name, command, run_dir.logs / f"{name}.log", {**environment, **limits}))

    console.print(f"run {run_dir}: starting teacher, rollout and learner (logs in {run_dir.logs})", highlight=False)
    if not config.teacher.addresses:
        service("teacher", "services.teacher_scorer", threads=config.teacher.threads)
    for replica in range(config.rollout.replicas):
        name = "rollout" if config.rollout.replicas == 1 else f"rollout-{replica}"
        port = f"rollout.port={config.rollout.port + replica}"
        service(name, "services.rollout", port, threads=config.rollout.threads)
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={config.learner.ranks}")
    learner = service("learner", "services.learner", launcher=torchrun, threads=config.learner.threads or 1)

    with Display(config, supervisor, console) as display:
        while not learner.finished:
            for event in supervisor.check():
                display.event(event)
            display.update()
            time.sleep(POLL_SECONDS)
        display.update()


@contextmanager
def stoppable(supervisor: Supervisor) -> Iterator[None]:
    """The first Ctrl-C stops cleanly, the second at once."""
    asked = False

    def stop(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            supervisor.kill()
            os._exit(130)
        asked = True
        raise Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _empty(run_dir: RunDir) -> None:
    """Remove an earlier run, and nothing that is not one."""
    contents = run_dir.contents
    if contents and not run_dir.is_run:
        raise CalopdError(f"{run_dir} holds something that is no run: it is left alone, choose another run.name")
    for path in contents:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _say_summary(console: Console, run_dir: RunDir, report: Path) -> None:
    summary = json.loads(run_dir.summary.read_text())
    if summary["gain_interval_95"] is not None:
        low, high = summary["gain_interval_95"]
        console.print(
            f"held-out accuracy {summary['accuracy_before']:.3f} → {summary['accuracy_after']:.3f} "
            f"on {summary['evaluation_problems']} problems (95 % interval of the gain {low:+.3f} to {high:+.3f})",
            highlight=False,
        )
    console.print(
        f"retained {summary['retained_ratio']:.3f}, zero-advantage {summary['zero_ratio']:.3f}, "
        f"{summary['trajectories_used']} trajectories of {summary['tickets_issued']} tickets, "
        f"{summary['seconds']:.0f} s, sampler {summary['sampler']}",
        highlight=False,
    )
    console.print(f"report: {report}", highlight=False)
