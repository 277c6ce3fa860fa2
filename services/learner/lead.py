"""The lead of a run: one learner at a time, also if the lock of the run directory does not hold across hosts."""

import logging
import os
import threading
import time

from calopd.core.errors import LearnerReplaced
from calopd.local.entry_point import CONFIG_ERROR_EXIT, tell_launcher
from calopd.transport.queue import Queue

log = logging.getLogger(__name__)

SHOWN_SECONDS = 4.0


def show_lead(queue: Queue) -> None:
    """Show from a thread that this learner is alive: a step may take longer than others wait.

    A learner that was replaced ends at once, whatever its other threads are doing: it may change no file any more.
    """
    threading.Thread(target=_show, args=(queue,), name="lead", daemon=True).start()


def _show(queue: Queue) -> None:
    while True:
        try:
            queue.stay_leader()
        except LearnerReplaced as error:
            log.error("%s", error)
            tell_launcher(str(error), final=True)
            logging.shutdown()
            os._exit(CONFIG_ERROR_EXIT)
        except Exception as error:  # the server is away: the learner itself retries and says so
            log.warning("the lead cannot be renewed: %s", error)
        time.sleep(SHOWN_SECONDS)
