"""What can be known to fail before anything is started: one clear line each."""

import socket
from pathlib import Path

import psutil

from calopd.config import Config
from calopd.core.contexts import BASE
from calopd.core.errors import ConfigError
from calopd.core.types import Problem
from calopd.data.problems import load_all
from calopd.models.prompts import Prompts
from calopd.models.tokenizers import load_tokenizer
from calopd.rundir.recorded_ratios import recorded_ratios
from calopd.tracking.registry import check_libraries

PROCESS_GIB = 0.8
"""What a service takes beside its model: interpreter, torch, buffers."""
LONGEST = 64
"""Problems whose prompts are tried out; the others are checked when their turn comes."""


def check(config: Config) -> None:
    """Refuse a run whose models, data, ports or memory are not there."""
    check_libraries(config.tracking.trackers)
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
    if config.method.method.recorded:
        assert config.method.recorded_run is not None
        recorded_ratios(config.method.recorded_run, config.method.method.recorded, config.run.steps)
    for key, port in ports(config).items():
        check_port(key, port)
    _check_memory(config)


def ports(config: Config) -> dict[str, int]:
    """The ports that a local run listens at, by the key that sets them."""
    out = {"learner.port": config.learner.port}
    if not config.teacher.addresses:
        out |= {"teacher.port": config.teacher.port, "teacher.metrics_port": config.teacher.metrics_port}
    for replica in range(config.rollout.replicas):
        out["rollout.port" + (f" + {replica}" if replica else "")] = config.rollout.port + replica
    if not config.queue.url:
        out["queue.port"] = config.queue.port
    taken: dict[int, str] = {}
    for key, port in out.items():
        if port in taken:
            raise ConfigError(f"{key} and {taken[port]} are both {port}: give each its own port")
        taken[port] = key
    return out


def is_local(path: str) -> bool:
    """Whether a model's path is a folder; else it is the hub's owner/name."""
    return path.startswith((".", "/", "~")) or path.count("/") != 1 or Path(path).exists()


def check_model(key: str, path: str) -> None:
    directory = Path(path)
    if not is_local(path):
        return  # a hub id: its service downloads it, and says so where it cannot
    if not (directory / "config.json").is_file() or not list(directory.glob("*.safetensors")):
        raise ConfigError(f"{key} = {path!r}: no model there (expected config.json and *.safetensors)")


def _check_solutions(config: Config, problems: list[Problem]) -> None:
    """Contexts that show a solution need one of every problem."""
    contexts = config.method.method.contexts(config.method.settings)
    needing = [name for name in contexts if "{solution}" in config.method.interventions.get(name, "")]
    lacking = next((problem.id for problem in problems if not problem.solution), None)
    if needing and lacking is not None:
        raise ConfigError(f"problem {lacking} has no solution, which the context {needing[0]!r} needs")


def _check_prompts(config: Config, problems: list[Problem]) -> None:
    """The longest problems under every context: one that does not fit is told before anything starts."""
    prompts = Prompts.configured(config, load_tokenizer(config.student.path), problems)
    longest = sorted(problems, key=lambda problem: len(problem.problem), reverse=True)[:LONGEST]
    for problem in longest:
        for context in dict.fromkeys((BASE, *config.method.method.contexts(config.method.settings))):
            prompts.ids(problem, context)


def check_port(key: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise ConfigError(
                f"port {port} ({key}) is in use: stop what listens there, or choose another with --set {key}=PORT"
            ) from None


def _check_memory(config: Config) -> None:
    def weights_gib(path: str) -> float:
        return sum(f.stat().st_size for f in Path(path).glob("*.safetensors")) / 2**30

    student, teacher = weights_gib(config.student.path), weights_gib(config.teacher.path)
    processes = 1 + config.rollout.replicas + config.learner.ranks
    cache = config.rollout.cpu_kv_cache_gib if config.rollout.engine == "vllm" else 0
    needed = processes * PROCESS_GIB + teacher + config.rollout.replicas * (student + cache) + 6 * student
    available = psutil.virtual_memory().available / 2**30
    if available < needed:
        raise ConfigError(
            f"too little memory: about {needed:.1f} GiB are needed, {available:.1f} GiB are free. Close programs, "
            "or lower rollout.cpu_kv_cache_gib, rollout.replicas or learner.ranks"
        )
