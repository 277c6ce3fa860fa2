"""Resolution of a MODEL argument: a model directory, hub id, run, policy or checkpoint."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from calopd.core.errors import ConfigError
from calopd.rundir.policies import MANIFEST, WEIGHTS, policy_dir

FORMS = (
    "a model directory, a hub id (owner/name), a run directory (RUN or RUN@VERSION), a policy or a checkpoint of a run"
)


@dataclass(frozen=True, slots=True)
class Model:
    label: str
    path: str
    """Model directory or hub id: configuration and tokenizer, and the weights if `weights` is None."""
    weights: Path | None = None
    """A directory whose model.safetensors replaces the weights of `path`, or a checkpoint."""
    version: int | None = None
    """Number of optimizer steps, for the weights of a run."""

    @property
    def is_checkpoint(self) -> bool:
        return self.weights is not None and not (self.weights / WEIGHTS).exists()


def resolve(text: str) -> Model:
    """Resolve `[LABEL=]MODEL` to a model."""
    label, equals, place = text.partition("=")
    if not equals or not re.fullmatch(r"[\w.+-]+", label):
        label, place = "", text
    place, _, version = place.partition("@") if re.search(r"@\d+$", place) else (place, "", "")
    path = Path(place)
    if (path / "config.toml").is_file():
        model = _of_run(path, int(version) if version else None)
    elif version:
        raise ConfigError(f"{text}: @{version} names a policy of a run, but {place} is not a run directory")
    elif path.parent.name in ("policies", "checkpoints") and path.name.isdigit():
        model = _of_run(path.parent.parent, int(path.name), kind=path.parent.name)
    elif (path / "config.json").is_file():
        model = Model(path.resolve().name, str(path))
    elif not path.exists() and place.count("/") == 1 and not place.startswith((".", "/", "~")):
        model = Model(place.rpartition("/")[2], place)
    else:
        raise ConfigError(f"no model at {place}: expected {FORMS}")
    return Model(label or model.label, model.path, model.weights, model.version)


def _of_run(run_dir: Path, version: int | None, kind: str = "") -> Model:
    try:
        config = tomllib.loads((run_dir / "config.toml").read_text(encoding="utf-8"))
        student, run = config["student"]["path"], config.get("run", {})
    except (OSError, KeyError):
        raise ConfigError(f"{run_dir} has no config.toml with student.path: expected a run directory") from None
    name = run_dir.resolve().name
    published = Path(run["policies"]) / run["name"] if run.get("policies") else run_dir / "policies"
    policies = _versions(published, MANIFEST)
    checkpoints = _versions(run_dir / "checkpoints", "record.json")
    if version is None and (run_dir / "model" / "config.json").is_file():
        return Model(name, str(run_dir / "model"), version=max(policies, default=None))
    wanted = max([*policies, *checkpoints], default=None) if version is None else version
    if wanted in policies and kind != "checkpoints":
        return Model(f"{name}@{wanted}", student, policy_dir(published, wanted), wanted)
    if wanted in checkpoints:
        return Model(f"{name}@{wanted}", student, run_dir / "checkpoints" / f"{wanted:06d}", wanted)
    there = sorted({*policies, *checkpoints})
    raise ConfigError(
        f"{run_dir} has no policy or checkpoint {'' if wanted is None else wanted}: "
        + (f"available are {', '.join(map(str, there))}" if there else "the run has not published any yet")
    )


def _versions(directory: Path, file: str) -> set[int]:
    return {int(d.name) for d in directory.glob("*") if d.name.isdigit() and (d / file).is_file()}
