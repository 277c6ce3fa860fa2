"""Checks before anything starts: models, problems, prompts, ports and memory."""

from pathlib import Path

import psutil

from calopd.config import Config
from calopd.config.ports import check_port, local_ports
from calopd.config.visible_gpus import check_placement
from calopd.core.contexts import BASE
from calopd.core.errors import ConfigError
from calopd.core.methods.base import RecordedSettings
from calopd.core.types import Problem
from calopd.data.problems import load_all
from calopd.models.prompts import Prompts
from calopd.models.tokenizers import load_tokenizer
from calopd.rundir.recorded_ratios import recorded_ratios
from calopd.tracking.registry import check_libraries

PROCESS_GIB = 0.8
"""Memory of a service besides its model: interpreter, torch, buffers."""
LONGEST = 64
"""Number of problems whose prompts are rendered, the longest first; the others are checked when they are used."""


def check(config: Config) -> None:
    """Refuse a run that would fail for want of a model, a solution, room in a prompt, a port or memory."""
    check_libraries(config.tracking.trackers)
    check_placement(config)
    check_model("student.path", config.student.path)
    if not config.teacher.addresses:
        check_model("teacher.path", config.teacher.path)
    training, held = load_all(config.data.train, config.data.heldout)
    _check_solutions(config, training)
    _check_prompts(config, training)
    if len(held) < config.evaluation.problems:
        raise ConfigError(
            f"evaluation.problems is {config.evaluation.problems}, but {config.data.heldout} holds {len(held)}"
        )
    if isinstance(config.method.settings, RecordedSettings):
        recorded_ratios(Path(config.method.settings.recorded_run), config.method.method.recorded, config.run.steps)
    for key, port in local_ports(config).items():
        check_port(key, port)
    _check_memory(config)


def is_local(path: str) -> bool:
    """Whether the path of a model is a directory; otherwise it is an id on the hub (`owner/name`)."""
    return path.startswith((".", "/", "~")) or path.count("/") != 1 or Path(path).exists()


def check_model(key: str, path: str) -> None:
    """Refuse a local path without a model."""
    directory = Path(path)
    if not is_local(path):
        return  # a hub id: the service downloads it, and reports an error if it cannot
    if not (directory / "config.json").is_file() or not list(directory.glob("*.safetensors")):
        raise ConfigError(f"{key} = {path!r}: no model found (expected config.json and *.safetensors)")


def _check_solutions(config: Config, problems: list[Problem]) -> None:
    """Contexts that show a solution need one of every problem."""
    known = config.method.known_contexts
    needing = [n for n in config.method.scored_contexts() if n in known and "solution" in known[n].needs]
    lacking = next((problem.id for problem in problems if not problem.solution), None)
    if needing and lacking is not None:
        raise ConfigError(f"problem {lacking} has no solution, which the context {needing[0]!r} needs")


def _check_prompts(config: Config, problems: list[Problem]) -> None:
    """The longest problems under every context: one that does not fit is told before anything starts."""
    prompts = Prompts.configured(config, load_tokenizer(config.student.path), problems)
    longest = sorted(problems, key=lambda problem: len(problem.problem), reverse=True)[:LONGEST]
    for problem in longest:
        for context in dict.fromkeys((BASE, *config.method.scored_contexts())):
            prompts.ids(problem, context)


def _check_memory(config: Config) -> None:
    """Refuse a local run that needs more memory than is available, by an estimate."""

    def weights_gib(path: str) -> float:
        return sum(f.stat().st_size for f in Path(path).glob("*.safetensors")) / 2**30

    student, teacher = weights_gib(config.student.path), weights_gib(config.teacher.path)
    teachers = 0 if config.teacher.addresses else config.teacher.replicas
    processes = teachers + config.rollout.replicas + config.learner.ranks
    cache = config.rollout.cpu_kv_cache_gib if config.rollout.engine == "vllm" else 0
    needed = processes * PROCESS_GIB + teachers * teacher + config.rollout.replicas * (student + cache) + 6 * student
    available = psutil.virtual_memory().available / 2**30
    if available < needed:
        raise ConfigError(
            f"not enough memory: about {needed:.1f} GiB needed, {available:.1f} GiB available. Close other programs, "
            "or lower rollout.cpu_kv_cache_gib, teacher.replicas, rollout.replicas or learner.ranks"
        )
