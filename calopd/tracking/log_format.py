"""The log format of all services."""

import logging
import sys


def setup_logging(service: str) -> None:
    """Log lines `time level service module: message` to stderr; the launcher keeps one file per process."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)-7s {service} %(name)s: %(message)s",
        force=True,
    )
    for noisy in ("httpx", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
