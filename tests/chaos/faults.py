"""Faults of a run: each kind of fault knows whom it can hit, how it strikes and how it ends.

To add a kind, write a function and a line in `KINDS`.
"""

import random
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from calopd.rundir import checkpoints
from calopd.rundir.policies import DELTA, WEIGHTS, policy_dir, policy_versions
from tests.chaos.stage import LONGEST_TIMEOUT, REPLICAS, ROLES, STALL_SECONDS, Stage

End = Callable[[], None]
"""Ends a fault that lasts."""
LARGEST_FILE = 2_000
"""Bytes that a file may have while the disk is "full"."""
ROLLOUTS = tuple(f"rollout-{i}" for i in range(REPLICAS))
TEACHERS = tuple(f"teacher-{i}" for i in range(REPLICAS))


class NobodyThere(Exception):
    """The target is not running, or not in a state that the fault needs: choose another fault."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault."""

    name: str
    targets: tuple[str, ...]
    strike: Callable[[Stage, str, random.Random], End]
    """Hit a target; returns how it ends."""
    seconds: tuple[float, float] = (0.0, 0.0)
    """How long it lasts, drawn between these."""
    weight: float = 1.0
    """How often it is drawn, relative to the others."""
    is_kill: bool = False
    victim: str = ""
    """The role that has to recover; empty = the target."""


def _nothing() -> None: ...


def _members(stage: Stage, role: str) -> list[psutil.Process]:
    if not (found := stage.processes(role)):
        raise NobodyThere(role)
    return found


def kill(stage: Stage, role: str, draw: random.Random) -> End:
    """SIGKILL one process of a role."""
    draw.choice(_members(stage, role)).kill()
    return _nothing


def freeze(stage: Stage, role: str, draw: random.Random) -> End:
    """SIGSTOP one process of a role, SIGCONT at the end."""
    victim = draw.choice(_members(stage, role))
    victim.suspend()

    def thaw() -> None:
        with suppress(psutil.NoSuchProcess):
            victim.resume()

    return thaw


def cut(stage: Stage, role: str, draw: random.Random) -> End:
    """Reset the connections to a server, and refuse new ones."""
    stage.proxies[role].cut()
    return stage.proxies[role].heal


def stall(stage: Stage, role: str, draw: random.Random) -> End:
    """Let the connections to a server pass nothing on."""
    stage.proxies[role].stall()
    return stage.proxies[role].heal


def fill_disk(stage: Stage, role: str, draw: random.Random) -> End:
    """Let a process write no file beyond a few bytes, as if the disk were full."""
    victim = _members(stage, role)[-1]
    unlimited = resource.RLIM_INFINITY
    victim.rlimit(psutil.RLIMIT_FSIZE, (LARGEST_FILE, unlimited))

    def free_space() -> None:
        with suppress(psutil.NoSuchProcess):
            victim.rlimit(psutil.RLIMIT_FSIZE, (unlimited, unlimited))

    return free_space


def damage(file: Path, draw: random.Random) -> None:
    """Flip a bit of a file, or cut it off."""
    data = bytearray(file.read_bytes())
    if not data:
        raise NobodyThere(str(file))
    if draw.random() < 0.3:
        data = data[: draw.randrange(len(data))]
    else:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)


def damage_checkpoint(stage: Stage, role: str, draw: random.Random) -> End:
    """Damage the newest checkpoint, if there is one before it, and kill the learner, which then reads it."""
    run_dir = stage.config.run_dir
    found = checkpoints.steps(run_dir)
    if len(found) < 2:
        raise NobodyThere("two checkpoints")
    try:
        files = sorted(path for path in run_dir.checkpoint(found[-1]).iterdir() if path.is_file())
        damage(draw.choice(files), draw)
    except FileNotFoundError:
        raise NobodyThere("the checkpoint, which was replaced") from None
    return kill(stage, role, draw)


def damage_policy(stage: Stage, role: str, draw: random.Random) -> End:
    """Damage the newest policy, whole or a delta, and kill a rollout, which then reads it."""
    versions = policy_versions(stage.config.policies)
    if not versions:
        raise NobodyThere("a policy")
    folder = policy_dir(stage.config.policies, versions[-1])
    for name in (DELTA, WEIGHTS):
        with suppress(FileNotFoundError):
            damage(folder / name, draw)
            return kill(stage, role, draw)
    raise NobodyThere("a policy, which was replaced")


LONG = (LONGEST_TIMEOUT + 1.0, LONGEST_TIMEOUT + 4.0)
LONGER = (STALL_SECONDS + 5.0, 2 * STALL_SECONDS)
KINDS = (
    Kind("kill", ROLES, kill, weight=12, is_kill=True),
    Kind("freeze", ROLES, freeze, seconds=LONG, weight=2),
    Kind("long freeze", ROLES, freeze, seconds=LONGER, weight=0.5),
    Kind("cut", ("redis", *TEACHERS), cut, seconds=(0.2, 6.0), weight=2),
    Kind("stall", ("redis", *TEACHERS), stall, seconds=LONG),
    Kind("full disk", ("learner", "redis"), fill_disk, seconds=(1.0, 5.0)),
    Kind("damaged checkpoint", ("learner",), damage_checkpoint, is_kill=True),
    Kind("damaged policy", ROLLOUTS, damage_policy, is_kill=True),
)
