"""report.html: one self-contained page on a run, readable while it is under way and long after it is over."""

import json
import tomllib
from pathlib import Path

from calopd.pages.report.report_page import RunRecord, render
from calopd.rundir.files import read_lines, write_text

__all__ = ["write_report"]


def write_report(run_dir: Path) -> Path:
    """Read the run's records, write run_dir/report.html (a whole file or none of it) and give back its path."""
    summary = run_dir / "summary.json"
    record = RunRecord(
        config=tomllib.loads((run_dir / "config.toml").read_text(encoding="utf-8")),
        steps=read_lines(run_dir / "metrics.jsonl"),
        summary=json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else None,
        trajectories=read_lines(run_dir / "trajectories.jsonl"),
        evaluations=[json.loads(file.read_text()) for file in sorted((run_dir / "evaluations").glob("*.json"))],
    )
    return write_text(run_dir / "report.html", render(record))
