"""A sampling job that several processes share: each writes the attempts on its part of the problems."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from calopd.config.placement import Group
from calopd.core.errors import ConfigError
from calopd.core.options import Sampling
from calopd.local.services import LocalServices, resumable
from calopd.models.devices import chosen_dtype
from calopd.models.model_files import model_folder, weights_digest
from calopd.rundir.files import read_lines, write_json


def attempts_file(out: Path, replica: int = 0) -> Path:
    """The journal of a replica of the job that writes `out`."""
    return out.with_name(f"{out.name}.attempts" + (f"-{replica}" if replica else ""))


def attempt_files(out: Path) -> list[Path]:
    """The journals of all replicas, also of an earlier start with another number of them."""
    return sorted(out.parent.glob(f"{out.name}.attempts*"))


def settings_file(out: Path) -> Path:
    """The model and the settings that all attempts for `out` share."""
    return out.with_name(f"{out.name}.settings.json")


def attempt_settings(arguments: argparse.Namespace, sampling: Sampling) -> dict[str, Any]:
    """The settings that determine the attempts of `calopd data solve`."""
    folder = model_folder(arguments.model)
    files = sorted(folder.glob("*.safetensors")) if folder else []
    return {
        "model": arguments.model,
        "weights": weights_digest("", files) if files else None,
        "endpoint": arguments.endpoint,
        **({} if arguments.endpoint else {"engine": arguments.engine, "dtype": chosen_dtype(arguments.dtype)}),
        **asdict(sampling),
        "max_prompt_tokens": arguments.max_prompt_tokens,
        "seed": arguments.seed,
    }


def keep_settings(out: Path, settings: dict[str, Any]) -> None:
    """Save the settings of the first start; refuse attempts that were made with others."""
    file = settings_file(out)
    attempts = [attempts for attempts in attempt_files(out) if attempts.stat().st_size]
    if not attempts:
        write_json(file, settings)
        return
    remedy = f"choose another --out, or remove {out.name}.attempts* to start over"
    if not file.exists():
        raise ConfigError(f"{attempts[0]} does not say which model made it: {remedy}")
    for key, saved in json.loads(file.read_text(encoding="utf-8")).items():
        if saved != settings.get(key):  # a key of another version of calopd is not known here
            raise ConfigError(f"{attempts[0]} was made with {key} = {saved}, not {settings.get(key)}: {remedy}")


def run_replicas(module: str, words: Sequence[str], gpus: Sequence[Group], out: Path, model: str) -> None:
    """Run one process per entry of `gpus` until all have done their part; show how many attempts there are."""
    logs = out.with_name(f"{out.name}.logs")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(soft_wrap=True)
    console.print(f"{len(gpus)} processes (logs in {logs})", highlight=False)
    with resumable(), Progress(*columns, console=console) as progress, LocalServices(logs, [model]) as services:
        task = progress.add_task("starting", total=None)
        processes = services.start_replicas(module, *words, gpus=gpus)
        for _ in services.watch(*processes):
            attempts = [row for file in attempt_files(out) for row in read_lines(file)]
            right = sum(row["correct"] for row in attempts)
            progress.update(task, description=f"{len(attempts)} problems attempted, {right} solved")
