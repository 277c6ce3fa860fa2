"""The ratios of a recorded Cal-OPD run, which the controls follow step by step."""

import json
from pathlib import Path
from typing import Any

from calopd.core.errors import ConfigError
from calopd.rundir.files import read_lines
from calopd.rundir.layout import RunDir


def recorded_ratios(directory: Path, key: str, steps: int) -> list[float]:
    """r_k or z_k (`key`) of the first `steps` steps of a run, at full precision; refused if one is missing."""
    run = RunDir(directory)
    file = run.metrics
    if run.summary.is_file() and json.loads(run.summary.read_text()).get("emulated"):
        raise ConfigError(f"method.recorded_run = {str(directory)!r} is an emulated run: its ratios mean nothing")
    lines: dict[int, Any] = {line["step"]: line.get(key) for line in read_lines(file)}
    if not lines:
        raise ConfigError(f"method.recorded_run = {str(directory)!r}: no {file.name} with steps there")
    missing = [step for step in range(steps) if lines.get(step) is None]
    if missing:
        raise ConfigError(
            f"method.recorded_run = {str(directory)!r} has {key} of {len(lines)} steps, and this run needs "
            f"{steps}: step {missing[0] + 1} is missing. Record a longer run, or lower run.steps"
        )
    return [lines[step] for step in range(steps)]
