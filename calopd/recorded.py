"""The ratios of a recorded Cal-OPD run, which the controls follow step by step."""

from typing import Any

from calopd.config import Config
from calopd.errors import ConfigError
from calopd.rundir import read_lines


def recorded_ratios(config: Config) -> list[float]:
    """r_k or z_k of every step of the configured run, at full precision; refused where one is missing."""
    name, directory = config.method.method.recorded, config.method.recorded_run
    assert directory is not None
    lines: dict[int, Any] = {line["step"]: line.get(name) for line in read_lines(directory / "metrics.jsonl")}
    if not lines:
        raise ConfigError(f"method.recorded_run = {str(directory)!r}: no metrics.jsonl with steps there")
    missing = [step for step in range(config.run.steps) if lines.get(step) is None]
    if missing:
        raise ConfigError(
            f"method.recorded_run = {str(directory)!r} has {name} of {len(lines)} steps, and this run needs "
            f"{config.run.steps}: step {missing[0]} is missing. Record a longer run, or lower run.steps"
        )
    return [lines[step] for step in range(config.run.steps)]
