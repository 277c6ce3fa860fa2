"""[queue]: the Redis server between learner and rollouts."""

from calopd.config.sections.base import Port, Section


class QueueSection(Section):
    """The Redis server that carries tickets and trajectories."""

    url: str = ""
    """`redis://user:password@host:port/0`, or `rediss://` for TLS; empty = `calopd run` starts a server of its own. Set
    it by `CALOPD__QUEUE__URL` to keep the password out of files; it is never saved with the run."""
    port: Port = 6_399
    """Port of the server that `calopd run` starts."""
