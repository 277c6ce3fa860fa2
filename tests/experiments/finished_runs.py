"""Records as a finished run leaves them."""

from calopd.config import Config
from calopd.rundir.files import write_json, write_lines, write_text
from calopd.rundir.run_id import ensure_run_id


def finish_run(config: Config, *, retained: float = 1.0, steps: int = 3) -> None:
    run_dir = config.run_dir
    ensure_run_id(run_dir)
    write_text(run_dir.config, config.to_toml())
    rows = [
        {
            "step": s,
            "retained_ratio": retained + s / 100,
            "grad_norm": 2.0 + s,
            "seconds": 60.0 * (s + 1),
            "tokens": 600,
        }
        for s in range(steps)
    ]
    write_lines(run_dir.metrics, rows)
    write_json(run_dir.summary, {"retained_ratio": retained})
    write_text(run_dir.model / "config.json", "{}")
