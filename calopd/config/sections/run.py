"""[run]"""

from pathlib import Path

from pydantic import Field

from calopd.config.sections.base import Section


class RunSection(Section):
    name: str = Field(default="run", pattern=r"^[A-Za-z0-9._-]+$")
    dir: Path = Path("runs")
    """The run lives in `dir`/`name`."""
    policies: Path | None = None
    """Policies pass from learner to rollouts in `policies`/`name` (a tmpfs); unset = in the run's directory."""
    steps: int = Field(default=100, ge=1)
    seed: int = 0
    deterministic: bool = False
    """Trajectories enter the gradient in the order of their tickets, in fixed micro-batches, not as they arrive."""
