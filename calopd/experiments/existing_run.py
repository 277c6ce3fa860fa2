"""The directory that a run of an experiment uses, or counts as its own: its check, and the settings in it."""

from collections.abc import Iterator
from typing import Any

from calopd.config import Config, check_resumable, load_config
from calopd.config.resume import check_owner
from calopd.core.errors import ConfigError
from calopd.experiments.planned_runs import RunJob
from calopd.pages.report import read_record
from calopd.rundir.training_problems import check_problems

DECIDING: dict[str, tuple[str, ...]] = {
    "run": ("steps", "deterministic"),
    "teacher": ("engine", "dtype", "quantization"),
    "rollout": ("engine", "dtype"),
    "learner": (
        "engine", "compute_dtype", "learning_rate", "warmup_steps", "betas", "weight_decay", "gradient_clip",
        "max_missing_ratio",
    ),
    "evaluation": ("problems", "every", "samples", "temperature", "top_p", "max_tokens"),
    "emulation": ("gpu", "time_scale", "response_tokens", "phases"),
}  # fmt: skip
"""Settings that may change when a run is resumed, and on which its results depend: in an experiment they may not."""


def settings_of(job: RunJob) -> dict[str, dict[str, Any]]:
    """The settings of a run and of what it refers to; of one that has not begun, its configuration."""
    run_dir = job.config.run_dir
    if run_dir.config.exists():
        return read_record(run_dir).settings
    settings: dict[str, dict[str, Any]] = job.config.model_dump(mode="json")
    return settings


def check_existing(job: RunJob) -> None:
    """Refuse a directory with anything but a run, or with one of other settings, of another experiment perhaps."""
    run_dir = job.config.run_dir
    if run_dir.contents and not run_dir.is_run:
        raise ConfigError(f"{run_dir} is not empty and not a run: set another `dir` in the experiment")
    if not run_dir.config.exists():
        return
    check_owner(run_dir, job.config.method.file)
    saved = load_config(run_dir.config, environ={})
    try:
        check_resumable(saved, job.config)
    except ConfigError as error:
        raise ConfigError(f"{run_dir}: {error}, or set another `dir` in the experiment") from None
    for key, was, wanted in _differences(saved, job.config):
        raise ConfigError(
            f"{run_dir} has {key} = {was}, the experiment {wanted}: set another `dir`, or remove the run to train it "
            "again"
        )
    check_problems(run_dir, job.config.data.train)


def _differences(saved: Config, wanted: Config) -> Iterator[tuple[str, Any, Any]]:
    old, new = saved.model_dump(mode="json"), wanted.model_dump(mode="json")
    for section, keys in DECIDING.items():
        for key in keys:
            if old[section][key] != new[section][key]:
                yield f"{section}.{key}", old[section][key], new[section][key]
