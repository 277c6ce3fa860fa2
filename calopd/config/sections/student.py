"""[student]"""

from calopd.config.sections.base import Section


class StudentSection(Section):
    path: str
    """Model directory or hub id."""
