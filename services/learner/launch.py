"""python -m services.learner.launch [--nproc-per-node N] -m services.learner --config CONFIG

Start the ranks of the learner. On one host they meet in a file and communicate over the loopback interface: nobody else
can connect. Ranks on several nodes (`--nnodes`) meet with torchrun, whose options follow.
"""

import argparse
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from calopd.core.environment import RANK_STORE
from calopd.core.one_line_parser import OneLineParser
from calopd.local.entry_point import die_with_launcher, ends_with_this_process, guarded
from services.learner.rank_exits import CONSEQUENCES, exit_code

POLL_SECONDS = 0.05
CAUSE_SECONDS = 10.0
"""A rank that lost another one may end first: time for the cause to end too, before the rest is stopped."""
STOP_SECONDS = 10.0
"""Time that stopped ranks have before they are killed."""


def main() -> None:
    parser = OneLineParser(prog="python -m services.learner.launch", description=__doc__)
    parser.add_argument("--nnodes", default=os.environ.get("PET_NNODES", "1"), help="nodes, or MIN:MAX")
    parser.add_argument(
        "--nproc-per-node", type=int, default=int(os.environ.get("PET_NPROC_PER_NODE", "1")), help="ranks on this host"
    )
    parser.add_argument("-m", dest="program", nargs=argparse.REMAINDER, required=True, help="module and its arguments")
    options, others = parser.parse_known_args()
    if int(options.nnodes.rpartition(":")[2]) > 1:
        from services.learner.node_launcher import launch_node

        launch_node(sys.argv[1:])
    if others:
        parser.error(f"unknown on one host: {' '.join(others)}")
    die_with_launcher()
    command = [sys.executable, "-m", *options.program]
    if options.nproc_per_node == 1:
        os.environ.update(numbers(0, 1))
        os.execv(sys.executable, command)  # a single rank has nobody to meet
    sys.exit(LocalRanks(command, options.nproc_per_node).wait())


def numbers(rank: int, count: int) -> dict[str, str]:
    """The variables that tell a rank its number, as torchrun sets them."""
    found = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    return {name: str(value) for name, value in found.items()}


class LocalRanks:
    """The ranks of one host as child processes, which end together."""

    def __init__(self, command: list[str], count: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="calopd-ranks-"))  # of this user alone
        self._ended: list[tuple[int, int]] = []
        """Ranks and exit codes, in the order in which they ended."""
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._stopped_by = 0
        """The signal that asked this process to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # the ranks share the cores
        for rank in range(count):
            environment = {**numbers(rank, count), RANK_STORE.name: str(self._folder / "store")}
            self._running[rank] = subprocess.Popen(
                command, env=os.environ | environment, preexec_fn=ends_with_this_process()
            )

    def wait(self) -> int:
        """Wait for the end of all ranks. After a failure the others are stopped. Return the exit code to pass on."""
        try:
            self._wait_while(lambda: not self._failed)
            self._wait_while(lambda: self._cause_unknown, CAUSE_SECONDS)
            for number in (signal.SIGTERM, signal.SIGKILL):
                self._signal(number)
                self._wait_while(lambda: True, STOP_SECONDS)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._stopped_by:
            return 128 + self._stopped_by
        return exit_code(self._ended) if self._failed else 0

    @property
    def _failed(self) -> bool:
        return bool(self._stopped_by) or any(code for _, code in self._ended)

    @property
    def _cause_unknown(self) -> bool:
        return not self._stopped_by and all(code in CONSEQUENCES for _, code in self._ended)

    def _wait_while(self, condition: Callable[[], bool], seconds: float = math.inf) -> None:
        """Wait as long as a rank runs and the condition holds, at most for this time."""
        deadline = time.monotonic() + seconds
        while self._running and condition() and time.monotonic() < deadline:
            for rank, process in list(self._running.items()):
                if (code := process.poll()) is not None:
                    del self._running[rank]
                    self._ended.append((rank, code))
            time.sleep(POLL_SECONDS)

    def _signal(self, number: int) -> None:
        for process in self._running.values():
            process.send_signal(number)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped_by = number


if __name__ == "__main__":
    guarded(main)
