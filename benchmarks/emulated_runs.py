"""Runs with emulated engines: the real services, Redis and gRPC as processes, their metrics and their cost."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from calopd.config import Config, load_config
from calopd.local.services import LocalServices
from calopd.planning.emulation import Emulation
from calopd.planning.known_models import KNOWN_MODELS
from calopd.planning.step_simulation import StepModel
from calopd.rundir.files import read_lines, write_text
from calopd.rundir.run_id import ensure_run_id
from tests.ports import free_ports

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "examples" / "demo"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
PAIRS = {
    "30b-to-8b": ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B-Thinking-2507"),
    "4b-to-1.7b": ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B-Thinking-2507"),
}
"""Student and teacher of the paper's pairs."""
POLL_SECONDS = 0.25
SEED = 1
"""A seed whose first steps have about the mean and the median of the lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A run: models, GPUs and their split over the roles."""

    pair: str
    gpu: str
    teachers: int
    rollouts: int
    ranks: int
    time_scale: float
    trajectories: int = 256
    steps: int = 3
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further settings by section."""


@dataclass(slots=True)
class Run:
    """A finished run."""

    config: Config
    lines: list[dict[str, Any]]
    """Metrics of the steps after the first, in which the processes start."""
    cpu_seconds: dict[str, float]
    """CPU seconds of every process since the first step."""
    memory_mib: dict[str, list[float]]
    """Resident memory of every process over time."""

    def mean(self, key: str) -> float:
        return sum(line[key] for line in self.lines) / len(self.lines)

    def model(self) -> StepModel:
        emulation = Emulation.of(self.config)
        assert emulation is not None
        return emulation.step_model()


def model_folder(name: str, folder: Path) -> Path:
    """The config.json of a well-known model and the demo's tokenizer, without weights."""
    target = folder / name.replace("/", "--")
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(KNOWN_MODELS[name]))
    for file in TOKENIZER_FILES:
        shutil.copy(DEMO / "student" / file, target / file)
    return target


def configuration(name: str, split: Split, folder: Path) -> Config:
    teacher, metrics, rollout, learner, queue = (ports[0] for ports in (free_ports(8) for _ in range(5)))
    student_name, teacher_name = PAIRS[split.pair]
    values: dict[str, dict[str, Any]] = {
        "run": {"name": name, "dir": str(folder / "runs"), "steps": split.steps, "seed": SEED},
        "data": {"train": str(DEMO / "train.jsonl")},
        "student": {"path": str(model_folder(student_name, folder))},
        "teacher": {
            "path": str(model_folder(teacher_name, folder)), "engine": "emulated", "replicas": split.teachers,
            "port": teacher, "metrics_port": metrics, "batch_tokens": 32_768, "canary_seconds": 1e6, "threads": 1,
        },
        "method": {"overlap_top_k": 0},
        "rollout": {
            "engine": "emulated", "replicas": split.rollouts, "port": rollout, "threads": 1,
        },
        "learner": {
            "engine": "emulated", "ranks": split.ranks, "port": learner, "trajectories": split.trajectories,
            "checkpoint_every": split.steps, "show_trajectories": 0, "threads": 1,
        },
        "queue": {"port": queue},
        "emulation": {"gpu": split.gpu, "time_scale": split.time_scale},
    }  # fmt: skip
    for section, keys in split.settings.items():
        values[section] |= keys
    file = folder / f"{name}.toml"
    file.write_text(tomli_w.dumps(values))
    return load_config(file, environ={})


def run(name: str, split: Split, folder: Path, watch: Callable[[Config, str], None] | None = None) -> Run:
    """Run to the end; `watch` is called now and then with the configuration and the URL of Redis."""
    config = configuration(name, split, folder)
    run_dir = config.run_dir
    run_dir.path.mkdir(parents=True)
    write_text(run_dir.config, config.to_toml())
    ensure_run_id(run_dir)
    memory: dict[str, list[float]] = {}
    at_start: dict[str, float] = {}
    now: dict[str, float] = {}
    with LocalServices(run_dir.logs, (config.student.path, config.teacher.path)) as services:
        services.start_queue(config, run_dir.redis)
        services.start_teachers(config, run_dir.config)
        services.start_rollouts(config, run_dir.config)
        learner = services.start_learner(config, run_dir.config)
        for events in services.watch(learner, poll_seconds=POLL_SECONDS):
            assert not events, events
            if not read_lines(run_dir.metrics):
                continue
            for process in _processes(services):
                try:
                    times, resident = process.cpu_times(), process.memory_info().rss
                    key = f"{_role(process)} {process.pid}"
                except psutil.NoSuchProcess:  # also a zombie
                    continue
                now[key] = times.user + times.system
                at_start.setdefault(key, now[key])
                memory.setdefault(key, []).append(resident / 2**20)
            if watch is not None:
                watch(config, services.queue_url)
    lines = read_lines(run_dir.metrics)
    assert len(lines) == split.steps
    return Run(
        config=config,
        lines=lines[1:] or lines,
        cpu_seconds={key: now[key] - at_start[key] for key in now},
        memory_mib=memory,
    )


def _processes(services: LocalServices) -> list[psutil.Process]:
    found = []
    for process in services.supervisor.processes:
        if process.popen is not None and process.popen.poll() is None:
            parent = psutil.Process(process.popen.pid)
            found += [parent, *parent.children(recursive=True)]
    return found


def _role(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    names = {"services.teacher_scorer": "teacher", "services.rollout": "rollout", "services.learner.launch": "launcher",
             "services.learner": "learner"}  # fmt: skip
    return next((role for part, role in names.items() if part in command), "redis")
