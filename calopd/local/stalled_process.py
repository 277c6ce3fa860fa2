"""The end of a process that hangs: it refuses work, says why, and exits whatever its other threads are doing."""

import logging
import os
import time
from collections.abc import Callable

from calopd.core.heartbeat import Heartbeat
from calopd.local.entry_point import RESTART_EXIT, tell_launcher

log = logging.getLogger(__name__)

GRACE_SECONDS = 3.0
"""Time between the first refusal and the exit, in which health checks and clients see the reason."""


def exit_when_stalled(heartbeat: Heartbeat, refuse: Callable[[str], object] = lambda reason: None) -> None:
    """End this process when its work hangs; `refuse` is called first, from another thread."""

    def give_up(reason: str) -> None:
        log.error("%s: no more work is accepted", reason)
        refuse(reason)
        time.sleep(GRACE_SECONDS)
        tell_launcher(reason, final=True)
        log.error("%s: exiting with code %d, a restart may help", reason, RESTART_EXIT)
        logging.shutdown()
        os._exit(RESTART_EXIT)

    heartbeat.watch(give_up)
