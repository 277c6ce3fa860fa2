"""The id of a run, which keeps two runs of one name apart in a shared Redis."""

import json
import secrets
import time

from calopd.core.errors import ConfigError
from calopd.rundir.files import write_json
from calopd.rundir.layout import RunDir

POLL_SECONDS = 0.2


def ensure_run_id(run_dir: RunDir) -> str:
    """The run's id, created at its first start."""
    if not run_dir.run_id.exists():
        write_json(run_dir.run_id, {"id": f"{run_dir.name}-{secrets.token_hex(4)}", "started": time.time()})
    return str(json.loads(run_dir.run_id.read_text())["id"])


def read_run_id(run_dir: RunDir, wait_seconds: float = 600.0) -> str:
    """The id of a run that another process starts; waits until it exists."""
    deadline = time.monotonic() + wait_seconds
    while not run_dir.run_id.exists():
        if time.monotonic() > deadline:
            raise ConfigError(
                f"no {run_dir.run_id.name} in {run_dir} after {wait_seconds:.0f} s: "
                "check that the learner is running and that the volume is shared"
            )
        time.sleep(POLL_SECONDS)
    return ensure_run_id(run_dir)
