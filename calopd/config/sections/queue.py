"""[queue]"""

from calopd.config.sections.base import Port, Section


class QueueSection(Section):
    url: str = ""
    """redis://user:password@host:port/0; empty = `calopd run` starts an embedded server at `port`."""
    port: Port = 6_399
