"""Resolution of a MODEL argument: a model directory, hub id, run, policy or checkpoint."""

import re
from dataclasses import dataclass
from pathlib import Path

from calopd.core.errors import ConfigError
from calopd.core.options import is_emulated
from calopd.models.model_files import is_local
from calopd.rundir import checkpoints
from calopd.rundir.layout import RunDir
from calopd.rundir.saved_config import read_config

FORMS = (
    "a model directory, a hub id (owner/name), a run directory (RUN or RUN@VERSION), a policy or a checkpoint of a run"
)


@dataclass(frozen=True, slots=True)
class Model:
    label: str
    path: str
    """Model directory or hub id: configuration and tokenizer, and the weights if `weights` is None."""
    weights: Path | None = None
    """A policy or a checkpoint, whose weights replace those of `path`."""
    version: int | None = None
    """Number of optimizer steps, for the weights of a run."""

    @property
    def is_checkpoint(self) -> bool:
        from calopd.rundir.policies import MANIFEST

        return self.weights is not None and not (self.weights / MANIFEST).exists()


def resolve(text: str) -> Model:
    """Resolve `[LABEL=]MODEL` to a model."""
    label, equals, place = text.partition("=")
    if not equals or not re.fullmatch(r"[\w.+-]+", label):
        label, place = "", text
    place, _, version = place.partition("@") if re.search(r"@\d+$", place) else (place, "", "")
    path = Path(place)
    run, above = RunDir(path), RunDir(path.parent.parent)
    if run.config.is_file():
        model = _of_run(run, int(version) if version else None)
    elif version:
        raise ConfigError(f"{text}: @{version} names a policy of a run, but {place} is not a run directory")
    elif path.parent in (above.policies, above.checkpoints) and path.name.isdigit():
        model = _of_run(above, int(path.name), kind=path.parent)
    elif (path / "config.json").is_file():
        model = Model(path.resolve().name, str(path))
    elif not is_local(place):
        model = Model(place.rpartition("/")[2], place)
    else:
        raise ConfigError(f"no model at {place}: expected {FORMS}")
    return Model(label or model.label, model.path, model.weights, model.version)


def _of_run(run: RunDir, version: int | None, kind: Path | None = None) -> Model:
    """A policy or checkpoint of a run; without a version the exported model, or else the newest of them."""
    from calopd.rundir.policies import policy_dir, policy_versions  # imports torch

    try:
        config = read_config(run)
        student, section = config["student"]["path"], config.get("run", {})
    except (KeyError, TypeError):
        raise ConfigError(f"{run} has no {run.config.name} with student.path: expected a run directory") from None
    if is_emulated(config):
        raise ConfigError(f"{run} is an emulated run, which trained no model: there is nothing to evaluate")
    name = run.path.resolve().name
    published = Path(section["policies"]) / section["name"] if section.get("policies") else run.policies
    policies, saved = policy_versions(published), checkpoints.steps(run)
    if version is None and (run.model / "config.json").is_file():
        return Model(name, str(run.model), version=max(policies, default=None))
    wanted = max([*policies, *saved], default=None) if version is None else version
    if wanted in policies and kind != run.checkpoints:
        return Model(f"{name}@{wanted}", student, policy_dir(published, wanted), wanted)
    if wanted in saved:
        return Model(f"{name}@{wanted}", student, run.checkpoint(wanted), wanted)
    existing = sorted({*policies, *saved})
    raise ConfigError(
        f"{run} has no policy or checkpoint {'' if wanted is None else wanted}: "
        + (f"available are {', '.join(map(str, existing))}" if existing else "the run has not published any yet")
    )
