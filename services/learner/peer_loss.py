"""The loss of a rank on another node: an end of its own, because starting again is enough to go on."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PEER_LOST_EXIT = 76
"""Exit code of a rank that lost another one."""
SIGNS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "ncclRemoteError")
"""Parts of the messages of Gloo and NCCL; both raise RuntimeError, or a subclass of it."""

log = logging.getLogger(__name__)


def is_peer_loss(error: BaseException | None) -> bool:
    """Whether a collective failed because another rank is gone; also if that caused the error."""
    while error is not None:
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def exit_if_peer_lost() -> Iterator[None]:
    """End the process with `PEER_LOST_EXIT` if another rank is lost within the block."""
    try:
        yield
    except Exception as error:
        if not is_peer_loss(error):
            raise
        log.error("another rank was lost: %s", str(error).splitlines()[0])
        sys.exit(PEER_LOST_EXIT)
