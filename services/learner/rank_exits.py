"""Exit codes of ranks: which one is the cause, and which ones are its consequences."""

import signal
import sys
from collections.abc import Iterable

from calopd.local.entry_point import CONFIG_ERROR_EXIT
from services.learner.peer_loss import PEER_LOST_EXIT

CONSEQUENCES = (0, PEER_LOST_EXIT, -signal.SIGABRT, -signal.SIGTERM)
"""Ends of ranks that did nothing wrong: they noticed a loss, NCCL's watchdog did, or their launcher stopped them."""


def exit_code(ended: Iterable[tuple[int, int]]) -> int:
    """The exit code to pass on, of ranks and their codes in the order of their ends.

    78 if any rank ended with it, since the others then fail as a consequence; else that of the first crash.
    """
    ended = list(ended)
    wrong = [(rank, code) for rank, code in ended if code == CONFIG_ERROR_EXIT]
    crashes = [(rank, code) for rank, code in ended if code not in CONSEQUENCES]
    for rank, code in (*wrong, *crashes):
        print(f"rank {rank} ended with exit code {code}", file=sys.stderr)
        return code if code > 0 else 128 - code
    return PEER_LOST_EXIT
