"""Logs of a service: one line format, kept by the launcher in one file a process."""

import logging
import sys


def setup_logging(service: str) -> None:
    """Lines `time level service module: message` on stderr."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)-7s {service} %(name)s: %(message)s",
        force=True,
    )
    for noisy in ("httpx", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
