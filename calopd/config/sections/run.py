"""[run]: the name, place, length and seed of a run."""

import re
from pathlib import Path

from pydantic import Field, field_validator

from calopd.config.sections.base import Fixed, Section, Seed


class RunSection(Section):
    """Name, directory, length and seed of the run."""

    name: Fixed[str] = "run"
    """Name of the run: its directory is `dir`/`name`, and its metrics carry the label `run`. Letters, digits, `.`, `_`
    and `-`. Choose a new name for every new run."""
    dir: Fixed[Path] = Path("runs")
    """Directory that holds the runs. Learner and rollouts must both see it."""
    policies: Path | None = None
    """Directory for the published policies, which are read from `policies`/`name`; unset = the run's directory. Set it
    to a tmpfs to pass weights through memory."""
    steps: int = Field(default=100, ge=1)
    """Number of optimizer steps. The learning rate reaches 0 at the end of them."""
    seed: Fixed[Seed] = 0
    """Seed of the problem order, the sampled responses and all other random choices. Change it to repeat a run with
    different randomness."""
    max_staleness: Fixed[int] = Field(default=0, ge=0)
    """Policy versions by which a trajectory may be older than the step that learns from it; 0 = strictly on-policy.
    With n > 0 the tickets of a step are issued n steps early, so that the rollouts sample while the learner trains, and
    an importance ratio corrects for the older policy (`method.importance_limit`)."""
    stall_seconds: float = Field(default=900.0, gt=0)
    """Seconds that one piece of work may take: an engine step, a batch of the teacher, a phase of the learner. A role
    that exceeds it hangs: it gives up its claims, turns unhealthy and exits, to be restarted. Raise it if a checkpoint
    takes longer to write."""
    trace: bool = False
    """Trace what every process does when: `trace.json.gz` in the run's directory, for Perfetto. `calopd run --trace`
    sets it."""
    deterministic: bool = False
    """Sample and score every ticket apart from the others, and learn in the order of tickets, in fixed micro-batches.
    With the torch engines on a CPU, the trained weights are then the same bit for bit, whatever is killed on the way.
    vLLM needs a GPU for it: it then computes independently of the batch, but the learner's kernels may still round
    differently. Slower: a late response delays others, and the torch engine samples one response at a time."""

    @field_validator("name")
    @classmethod
    def _folder_name(cls, name: str) -> str:
        """A name that is a folder of its own inside `dir`."""
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or name in (".", ".."):
            raise ValueError(f"run.name is {name!r}: expected letters, digits, `.`, `_` and `-`, such as demo-2")
        return name
