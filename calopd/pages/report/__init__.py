"""report.html: one self-contained page on a run, readable while it is under way and long after it is over."""

import json
from pathlib import Path
from typing import Any

from calopd.core.errors import ConfigError
from calopd.pages.report.report_page import RunRecord, render
from calopd.rundir.files import read_lines, write_text
from calopd.rundir.layout import RunDir
from calopd.rundir.saved_config import read_config
from calopd.rundir.training_problems import count_problems

__all__ = ["read_record", "render_report", "write_report"]


def read_record(run_dir: RunDir, *, trajectories: bool = False) -> RunRecord:
    """Read the run's records; the trajectories, which are large, only if asked for."""
    summary, config = run_dir.summary, read_config(run_dir)
    return RunRecord(
        config=config,
        steps=read_lines(run_dir.metrics),
        summary=json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else None,
        trajectories=read_lines(run_dir.trajectories) if trajectories else [],
        evaluations=[json.loads(file.read_text()) for file in run_dir.evaluation_files],
        followed=_followed(config),
        problems=count_problems(run_dir),
    )


def _followed(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the run that this one follows; empty if there is none, or if it was moved or removed."""
    recorded = config.get("method", {}).get("recorded_run")
    try:
        return read_config(RunDir(Path(recorded))) if recorded else {}
    except ConfigError:
        return {}


def render_report(run_dir: RunDir) -> str:
    """The page of a run's records."""
    return render(read_record(run_dir, trajectories=True))


def write_report(run_dir: RunDir, file: Path | None = None) -> Path:
    """Write the page (a whole file or none of it), by default to run_dir/report.html, and give back its path."""
    return write_text(file or run_dir.report, render_report(run_dir))
