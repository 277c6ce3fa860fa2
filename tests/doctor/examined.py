"""Configurations of the tests under examination."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from calopd.config import Config, load_config
from calopd.doctor.case import Case
from calopd.doctor.checks import Level, examine
from calopd.doctor.outcome import Outcome, Verdict
from tests.services.processes import ROOT


def copied(tiny, folder: Path, settings: Iterable[str] = ()) -> Config:
    """A run with its own copies of both models and of the problems, which a test may damage."""
    for name in ("student", "teacher"):
        shutil.copytree(getattr(tiny, name), folder / name)
    for name in ("train", "heldout"):
        shutil.copy(getattr(tiny, name), folder / f"{name}.jsonl")
    own = [f'{name}.path="{folder / name}"' for name in ("student", "teacher")]
    own += [f'data.{name}="{folder / name}.jsonl"' for name in ("train", "heldout")]
    file = folder / "run.toml"
    file.write_text(tiny.config("examined"))
    return load_config(file, [*own, f'run.dir="{folder}"', *settings], environ={})


def recipe(name: str, *settings: str) -> Config:
    """A configuration that is shipped."""
    return load_config(ROOT / "configs" / f"{name}.toml", settings, environ={})


def failures(config: Config, level: Level = Level.SERVICES) -> dict[str, Outcome]:
    """The failed checks by name."""
    results = examine(Case(config), level)
    return {result.name: result.outcome for result in results if result.outcome.verdict is Verdict.FAILED}


def check_fault(config: Config, name: str, message: str, advice: str) -> None:
    """The fault is found by this check and by no other, and the user is told what to do."""
    found = failures(config)
    assert list(found) == [name], {key: outcome.message for key, outcome in found.items()}
    assert message in found[name].message
    assert advice in found[name].advice
