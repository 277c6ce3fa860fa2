"""`calopd tsd collect`: start the teacher and the collectors and show their progress; repeated, it resumes."""

import argparse
import json
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from calopd.config import Config
from calopd.config.ports import chosen_ports, reserved_ports
from calopd.config.visible_gpus import check_placement
from calopd.core.contexts import BASE, probe_names
from calopd.core.errors import ConfigError
from calopd.doctor.checks import require
from calopd.local.services import LocalServices
from calopd.rundir.files import read_lines, write_text
from calopd.rundir.locks import exclusive, is_locked, wait_until_unlocked
from calopd.study.layout import StudyDir
from calopd.study.recorded_rollouts import count_recorded, lacks_student
from calopd.study.shards import Study, check_contexts

PAPER_TOKENS = 60_000_000
NOISE_ROLLOUTS = 64
"""Rollouts that are scored twice under c0 by default: some hundred thousand tokens of long responses."""
COLLECTOR = "services.rollout.jobs.collect"
LOG_SECONDS = 15.0
"""Time between progress lines if the output is not a terminal."""


@dataclass(frozen=True, slots=True)
class Goal:
    """How much to collect, and how often to save it."""

    tokens: int | None
    rollouts: int | None
    shard_tokens: int
    flush_seconds: float
    noise_rollouts: int = 0
    """The first rollouts, scored a second time under c0 to measure numerical noise."""

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Goal":
        tokens = arguments.tokens
        if tokens is None and arguments.rollouts is None and arguments.recorded is None:
            tokens = PAPER_TOKENS
        return cls(
            tokens, arguments.rollouts, arguments.shard_tokens, arguments.flush_seconds, arguments.noise_rollouts
        )

    def at_most(self, rollouts: int) -> "Goal":
        return replace(self, rollouts=min(rollouts, self.rollouts or rollouts))

    def arguments(self) -> list[str]:
        given = {"tokens": self.tokens, "rollouts": self.rollouts, "shard-tokens": self.shard_tokens}
        words = [word for key, value in given.items() if value is not None for word in (f"--{key}", str(value))]
        return [*words, "--flush-seconds", str(self.flush_seconds), "--noise-rollouts", str(self.noise_rollouts)]


def contexts_of(config: Config, chosen: str | None) -> list[str]:
    """c0 and the contexts of the chosen groups; by default the eight of the paper and the user's own."""
    known = config.method.known_contexts
    contexts = [BASE, *(probe_names(map(str.strip, chosen.split(",")), known) if chosen else known)]
    check_contexts(contexts)
    return contexts


def study_facts(config: Config, contexts: list[str], recorded: Path | None) -> dict[str, Any]:
    """The settings that all rollouts of a study share."""
    return {
        "student": config.student.path,
        "teacher": config.teacher.path,
        "data": str(config.data.train),
        "contexts": contexts,
        "seed": config.run.seed,
        **asdict(config.rollout.sampling),
        "placement": config.method.placement,
        "recorded": None if recorded is None else str(recorded),
    }


def collect(config: Config, directory: Path, goal: Goal, *, chosen: str | None, recorded: Path | None) -> None:
    """Collect until the goal is reached, counting the rollouts that exist already."""
    study = Study(directory)
    contexts = contexts_of(config, chosen)
    if len(contexts) > config.teacher.max_contexts:
        raise ConfigError(f"{len(contexts)} contexts, but teacher.max_contexts is {config.teacher.max_contexts}")
    if study.files.facts.exists() and is_locked(study.files.launcher_lock):
        raise ConfigError(f"{directory} is being collected by another process: wait for its end")
    check_placement(config, ("teacher", "rollout"))
    # Collectors of recorded rollouts sample nothing.
    require(config, study=contexts, placed=("teacher", "rollout") if recorded is None else ("teacher",))
    if recorded is not None:
        goal = goal.at_most(count_recorded(recorded))
    study.begin(**study_facts(config, contexts, recorded))
    with (
        reserved_ports(config, chosen_ports(config), learner=False) as config,
        exclusive(study.files.launcher_lock, f"{directory} is being collected by another process"),
    ):
        write_text(study.files.config, config.to_toml())
        wait_until_unlocked(study.files.collectors_lock)  # collectors of a killed launcher end at once
        models = (config.student.path, config.teacher.path)
        with LocalServices(study.files.logs, models) as services:
            _collect(config, study, goal, recorded, services)


def _collect(config: Config, study: Study, goal: Goal, recorded: Path | None, services: LocalServices) -> None:
    file, replicas = study.files.config, config.rollout.replicas
    arguments = ["--config", str(file), "--study", str(study.directory), *goal.arguments()]
    if recorded is not None:
        arguments += ["--recorded", str(recorded)]
        if lacks_student(recorded):
            port, metrics = _free_ports(2)
            settings = f"teacher.path={config.student.path}", f"teacher.port={port}", f"teacher.metrics_port={metrics}"
            # Collectors of recorded rollouts sample nothing and a study has no learner: their GPUs are free.
            free = [gpu for group in (*config.placement.rollouts, config.placement.learner) for gpu in group]
            gpus = free[: config.teacher.tensor_parallel_size]
            services.start_scorer(config, file, *settings, name="student-scorer", gpus=gpus)
            arguments += ["--student-scorer", f"127.0.0.1:{port}"]
    services.start_teachers(config, file)
    placed = config.placement.rollouts
    for replica in range(replicas):
        study.files.progress(replica).unlink(missing_ok=True)
    collectors = [
        services.start(
            f"collector-{replica}", COLLECTOR, *arguments, "--replica", str(replica), "--replicas", str(replicas),
            threads=config.rollout.threads, gpus=placed[replica] if placed else (),
        )
        for replica in range(replicas)
    ]  # fmt: skip
    display = _Display(goal, study.files, replicas)
    with display.progress:
        for events in services.watch(*collectors):
            for event in events:
                display.progress.console.print(event, highlight=False, markup=False)
            display.update()
        display.update(last=True)


class _Display:
    """Tokens and rollouts so far and the remaining time: a progress bar in a terminal, else a line now and then."""

    def __init__(self, goal: Goal, files: StudyDir, replicas: int) -> None:
        self._first: tuple[float, int] | None = None
        self._files, self._replicas = files, replicas
        self._unit = "tokens" if goal.tokens is not None else "rollouts"
        self._goal = goal.tokens if goal.tokens is not None else goal.rollouts or 0
        self._said = time.monotonic()
        text = TextColumn("{task.description}")
        self.progress = Progress(text, BarColumn(), TextColumn("{task.fields[counts]}"), TimeRemainingColumn())
        self._task = self.progress.add_task("collecting", total=self._goal, counts="")

    def _counts(self) -> dict[str, int]:
        counts = {"rollouts": 0, "tokens": 0}
        for replica in range(self._replicas):
            file = self._files.progress(replica)
            own: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
            for key in counts:
                counts[key] += own.get(key, 0)
        return counts

    def update(self, last: bool = False) -> None:
        counts = self._counts()
        refused = sum(len(read_lines(file)) for file in self._files.refused_files)
        text = f"{counts['tokens']:,} tokens, {counts['rollouts']:,} rollouts" + (
            f", {refused} refused" if refused else ""
        )
        self.progress.update(self._task, completed=min(counts[self._unit], self._goal), counts=text)
        now, done = time.monotonic(), counts[self._unit]
        self._first = self._first or ((now, done) if done else None)
        if not self.progress.console.is_terminal and (last or now - self._said > LOG_SECONDS):
            self._said = now
            since, before = self._first or (now, done)
            left = (self._goal - done) * (now - since) / (done - before) if done > before else 0
            eta = f", about {left:.0f} s left" if left > 0 and not last else ""
            Console(file=sys.stdout, soft_wrap=True).print(
                f"{text} of {self._goal:,} {self._unit}{eta}", highlight=False
            )


def _free_ports(count: int) -> list[int]:
    """Distinct free ports: each one is held until all are chosen."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
