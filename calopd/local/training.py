"""`calopd run`: a whole run on one machine, from the first process to the report."""

import json
import shutil
from collections.abc import Collection
from pathlib import Path

from rich.console import Console

from calopd.config import Config
from calopd.config.ports import reserved_ports
from calopd.core.errors import ConfigError
from calopd.doctor.checks import require
from calopd.local import embedded_redis
from calopd.local.display import Display
from calopd.local.services import LocalServices
from calopd.rundir.files import write_text
from calopd.rundir.layout import RunDir
from calopd.rundir.locks import exclusive, is_locked
from calopd.rundir.run_id import ensure_run_id
from calopd.tracking.trace import write_trace

SERVER_SECONDS = 2.0
"""Time that a Redis server of the configuration has to answer before a run starts."""


def run(config: Config, *, resume: bool, overwrite: bool, chosen_ports: Collection[str]) -> None:
    """Train to the end and write the report. Ports other than the chosen ones are replaced if they are in use."""
    run_dir = config.run_dir
    console = Console(soft_wrap=True)
    busy = f"{run_dir} is being run by another process: wait for its end, or choose another run.name"
    if is_locked(run_dir.launcher_lock):
        raise ConfigError(busy)
    if not resume:
        _check_replaceable(config, overwrite)
    elif finished := _finished_steps(run_dir, config.run.steps):
        console.print(f"{run_dir} is complete: {finished} steps. To train on, add --set run.steps=N", highlight=False)
        return
    if config.queue.url:
        embedded_redis.wait_until_ready(config.queue.url, SERVER_SECONDS)
    require(config, besides=("ports",))  # they are reserved below
    with reserved_ports(config, chosen_ports) as config:
        run_dir.path.mkdir(parents=True, exist_ok=True)
        with exclusive(run_dir.launcher_lock, busy):
            if not resume:
                _remove_earlier_run(run_dir)
            ensure_run_id(run_dir)
            write_text(run_dir.config, config.to_toml())
            try:
                with LocalServices(run_dir.logs, (config.student.path, config.teacher.path)) as services:
                    _train(config, services, console)
            finally:
                if (trace := write_trace(run_dir)) is not None:
                    console.print(f"trace: {trace} (open it at https://ui.perfetto.dev)", highlight=False)
    from calopd.pages.report import write_report  # imports torch, which a failed start need not wait for

    report = write_report(run_dir)
    _print_summary(console, run_dir, report)


def _check_replaceable(config: Config, overwrite: bool) -> None:
    """Refuse a directory with a run that was not to be replaced, or with anything but a run."""
    run_dir = config.run_dir
    if not run_dir.contents:
        return
    if not run_dir.is_run:
        raise ConfigError(f"{run_dir} is not empty and not a run: nothing was removed, choose another run.name")
    saved = (path for folder in (config.policies, run_dir.checkpoints) for path in folder.glob("[0-9]*"))
    began = run_dir.metrics.exists() or any(saved)
    if began and not overwrite:
        raise ConfigError(
            f"{run_dir} exists: resume it with `calopd run --resume {run_dir}`, or replace it with --overwrite"
        )


def _finished_steps(run_dir: RunDir, wanted: int) -> int:
    """The steps of a run that is complete; 0 if steps are left to train."""
    if not run_dir.summary.exists():
        return 0
    steps = int(json.loads(run_dir.summary.read_text(encoding="utf-8"))["steps"])
    return steps if steps >= wanted else 0


def _train(config: Config, services: LocalServices, console: Console) -> None:
    run_dir = config.run_dir
    services.start_queue(config, run_dir.redis)
    console.print(f"run {run_dir}: starting {_counted(config)} (logs in {run_dir.logs})", highlight=False)
    services.start_teachers(config, run_dir.config)
    services.start_rollouts(config, run_dir.config)
    learner = services.start_learner(config, run_dir.config)
    with Display(config, services.supervisor, console) as display:
        for events in services.watch(learner):
            for event in events:
                display.event(event)
            display.update()


def _counted(config: Config) -> str:
    """The processes to start, with their GPUs if they are placed."""
    placement = config.placement
    teachers = 0 if config.teacher.addresses else config.teacher.replicas
    return ", ".join(
        f"{number} {name}{'s' if number > 1 else ''}" + (f" on GPU {gpus}" if gpus else "")
        for name, number, gpus in (
            ("teacher", teachers, _shown(*placement.teachers)),
            ("rollout", config.rollout.replicas, _shown(*placement.rollouts)),
            ("learner rank", config.learner.ranks, _shown(*((gpu,) for gpu in placement.learner))),
        )
        if number
    )


def _shown(*groups: tuple[int, ...]) -> str:
    return ", ".join("+".join(map(str, group)) for group in groups)


def _remove_earlier_run(run_dir: RunDir) -> None:
    """Empty the directory of a run."""
    assert not run_dir.contents or run_dir.is_run
    for path in run_dir.contents:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _print_summary(console: Console, run_dir: RunDir, report: Path) -> None:
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
