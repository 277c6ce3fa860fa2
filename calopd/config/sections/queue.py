"""[queue]: the Redis server between learner and rollouts."""

import re
from urllib.parse import urlsplit

from pydantic import field_validator

from calopd.config.sections.base import Port, Section


class QueueSection(Section):
    """The Redis server that carries tickets and trajectories."""

    url: str = ""
    """`redis://user:password@host:port/0`, or `rediss://` for TLS; empty = `calopd run` starts a server of its own. Set
    it by `CALOPD__QUEUE__URL` to keep the password out of files; it is never saved with the run."""
    port: Port = 6_399
    """Port of the server that `calopd run` starts."""

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        """Refuse an address that no backend can read, without repeating it: it may hold a password."""
        try:
            valid = not url or (re.match("[a-z][a-z0-9]*://.", url) and urlsplit(url).port != 0)
        except ValueError:  # a port that is no number
            valid = False
        if not valid:
            raise ValueError("queue.url is not an address: expected redis://user:password@host:6379/0")
        return url
