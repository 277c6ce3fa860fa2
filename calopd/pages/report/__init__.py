"""report.html: one self-contained page on a run, readable while it is under way and long after it is over."""

import json
import tomllib
from pathlib import Path

from calopd.pages.report.report_page import RunRecord, render
from calopd.rundir.files import read_lines, write_text
from calopd.rundir.layout import RunDir

__all__ = ["read_record", "write_report"]


def read_record(run_dir: RunDir, *, trajectories: bool = False) -> RunRecord:
    """Read the run's records; the trajectories, which are large, only if asked for."""
    summary = run_dir.summary
    return RunRecord(
        config=tomllib.loads(run_dir.config.read_text(encoding="utf-8")),
        steps=read_lines(run_dir.metrics),
        summary=json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else None,
        trajectories=read_lines(run_dir.trajectories) if trajectories else [],
        evaluations=[json.loads(file.read_text()) for file in run_dir.evaluation_files],
    )


def write_report(run_dir: RunDir) -> Path:
    """Read the run's records, write run_dir/report.html (a whole file or none of it) and give back its path."""
    return write_text(run_dir.report, render(read_record(run_dir, trajectories=True)))
