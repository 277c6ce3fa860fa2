"""The options of sampling commands for processes and GPUs: `--gpus` and `--replicas`."""

import argparse

from calopd.cli.argument_types import whole

NOT_PLACED: tuple[int, ...] = ()
"""A replica that sees the GPUs of its parent."""


def add_gpu_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpus",
        metavar="IDS|CONFIG",
        help="GPUs to use, such as 0,1,2,3, or those of [resources] in a TOML: one process on every "
        "--tensor-parallel-size of them",
    )
    parser.add_argument(
        "--replicas",
        type=whole,
        help="processes, each with its own GPUs or threads (default: as many as --gpus gives, or 1)",
    )


def replica_gpus(arguments: argparse.Namespace) -> list[tuple[int, ...]]:
    """The GPUs of each process to start; empty for one that is not placed."""
    from calopd.config.visible_gpus import check_gpus, visible_gpus
    from calopd.core.errors import ConfigError

    each, replicas = arguments.tensor_parallel_size, arguments.replicas
    if replicas is not None and replicas < 1:
        raise ConfigError(f"--replicas {replicas}: expected 1 or more")
    if arguments.gpus is None:
        if replicas in (None, 1) or not (visible := visible_gpus()):
            return [NOT_PLACED] * (replicas or 1)
        if replicas * each > len(visible):
            raise ConfigError(
                f"{replicas} replicas with {each} GPUs each need {replicas * each} GPUs, "
                f"but {len(visible)} are visible: use fewer replicas"
            )
        return _groups(list(range(replicas * each)), each)
    gpus = _named_gpus(arguments.gpus)
    check_gpus(gpus, "--gpus")
    if len(gpus) % each:
        raise ConfigError(
            f"--gpus {arguments.gpus}: {len(gpus)} GPUs cannot be divided by --tensor-parallel-size {each}"
        )
    groups = _groups(gpus, each)
    if replicas not in (None, len(groups)):
        raise ConfigError(f"--gpus {arguments.gpus} gives {len(groups)} replicas, not {replicas}: leave out --replicas")
    return groups


def _groups(gpus: list[int], each: int) -> list[tuple[int, ...]]:
    return [tuple(gpus[start : start + each]) for start in range(0, len(gpus) - each + 1, each)]


def _named_gpus(text: str) -> list[int]:
    """The ids of `0,1,2,3`, or all GPUs that the [resources] of a TOML gives to its roles."""
    from pathlib import Path

    from calopd.config import load_config
    from calopd.core.errors import ConfigError

    if text.endswith(".toml"):
        placed = load_config(Path(text)).placement.gpus
        if not placed:
            raise ConfigError(f"--gpus {text}: the file has no [resources] with GPUs")
        return list(placed)
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        raise ConfigError(f"--gpus {text}: expected different ids such as 0,1,2,3, or a TOML with [resources]")
    return [int(word) for word in words]
