"""python -m services.learner.torchrun [options of torchrun] -m services.learner --config CONFIG

torchrun that passes on the exit code of the rank that failed, so that its parent can tell an error that a restart
cannot fix (78) from a crash. On several nodes it meets the others again if one of them was lost: a pod that ends makes
its Job wait longer before every new pod, whatever the exit code.
"""

import os
import signal
import sys
import time

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.run import main as torchrun
from torch.distributed.run import parse_args, parse_min_max_nnodes

from calopd.local.entry_point import CONFIG_ERROR_EXIT
from services.learner.peer_loss import PEER_LOST_EXIT

CONSEQUENCES = (PEER_LOST_EXIT, -signal.SIGABRT, -signal.SIGTERM)
"""Ends of ranks that did nothing wrong: they noticed a loss, NCCL's watchdog did, or torchrun stopped them."""
REJOINED = "_CALOPD_REJOINED"
MAX_REJOINS = 5
"""Times in a row that the others are met again after less than `LONG_SECONDS` of work."""
LONG_SECONDS = 600.0


def main() -> None:
    start = time.monotonic()
    several_nodes = parse_min_max_nnodes(parse_args(sys.argv[1:]).nnodes)[1] > 1
    try:
        torchrun()
        return
    except ChildFailedError as error:
        code = _exit_code(error)
    except (RendezvousError, DistError) as error:
        # The store of the rendezvous is in the first pod.
        print(f"the rendezvous failed: {error}", file=sys.stderr)
        code = PEER_LOST_EXIT
    if code == PEER_LOST_EXIT and several_nodes:
        _rejoin(time.monotonic() - start)
    sys.exit(code)


def _exit_code(error: ChildFailedError) -> int:
    """78 if any rank ended with it, since the others then fail as a consequence; else that of the first crash."""
    failures = sorted(error.failures.values(), key=lambda failure: failure.timestamp)
    wrong = [failure for failure in failures if failure.exitcode == CONFIG_ERROR_EXIT]
    crashes = [failure for failure in failures if failure.exitcode not in CONSEQUENCES]
    for failure in (*wrong, *crashes):
        print(f"rank {failure.local_rank} ended with exit code {failure.exitcode}", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    return PEER_LOST_EXIT


def _rejoin(seconds: float) -> None:
    """Start again in this process, to wait for the lost node; returns if that was of no use several times in a row."""
    count = 1 if seconds > LONG_SECONDS else 1 + int(os.environ.get(REJOINED, "0"))
    if count > MAX_REJOINS:
        return
    print(
        f"ranks of another node were lost after {seconds:.0f} s: meeting again ({count})", file=sys.stderr, flush=True
    )
    os.environ[REJOINED] = str(count)
    # The others need time to notice the loss too: until then, the old rendezvous refuses newcomers.
    time.sleep(2**count)
    os.execv(sys.executable, [sys.executable, "-m", "services.learner.torchrun", *sys.argv[1:]])


if __name__ == "__main__":
    main()
